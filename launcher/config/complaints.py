"""What Hydra and OmegaConf complain about, in one line: what is wrong, the nearest names, what to do."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any, get_type_hints

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, InterpolationResolutionError, OmegaConfBaseException

from launcher.config.schema import Config


def explain(error: Exception) -> str | None:
    """One line for a failure of composition, or None for an error that is not the user's."""
    chained = error.__cause__ or error.__context__  # Hydra names the first of a mistake in a file only as the second
    cause = chained if isinstance(error, HydraException) and isinstance(chained, Exception) else error
    file = re.match(r"In '([^']+)': \w+ raised while composing", str(error))
    if file is None:
        return _explained(error, cause)
    said = _explained(cause, cause)
    return None if said is None else f"{file[1]}.yaml: {said}"


def _explained(error: Exception, cause: Exception) -> str | None:
    if isinstance(error, OverrideParseException):
        return f"cannot read '{error.override}': write KEY=VALUE, with quotes around a value that holds blanks or signs"
    if "requires --multirun" in str(error) or "Ambiguous value for argument" in str(error):
        return _several_values(str(error))
    if isinstance(error, MissingConfigException):
        return _missing_file(error)
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return unknown_key(str(cause.full_key or cause.key), _siblings(cause))
    if isinstance(cause, OmegaConfBaseException):
        return _bad_value(cause)
    if isinstance(cause, yaml.YAMLError):
        return f"a configuration file is not valid YAML: {' '.join(str(cause).split())}"
    if isinstance(cause, (ValueError, TypeError)):  # OmegaConf's own, where a key leads into a list
        return f"the overrides do not fit together: {_first_line(cause)}"
    return _first_line(error) if isinstance(error, HydraException) else None


def _several_values(said: str) -> str:
    override = said.split("'")[1].lstrip("+")
    key, _, value = override.partition("=")
    return f"{override} gives several values: with -m it is a sweep over them, and {key}=\"'{value}'\" is one text"


def unknown_key(key: str, siblings: Iterable[str] = ()) -> str:
    """The complaint about a key that no configuration has; siblings are keys that stand where it was looked for."""
    return f"there is no key '{key}'{nearest(key, [*all_keys(), *siblings])}"


def _siblings(cause: OmegaConfBaseException) -> list[str]:
    """The keys beside the missing one, with dots: hyperparameters stand in no schema."""
    prefix = str(cause.full_key or "").rpartition(".")[0]
    node = cause.parent_node
    return [f"{prefix}.{key}" for key in node] if prefix and isinstance(node, DictConfig) else []


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean …?`` with the closest of the known names, or nothing."""
    parent, _, last = name.rpartition(".")
    leaves: dict[str, list[str]] = {}  # the last words of the keys that stand where this one was looked for
    elsewhere: list[str] = []
    for key in known:
        home, _, leaf = key.rpartition(".")
        if home == parent:
            leaves.setdefault(leaf, []).append(key)
        elif leaf == last:
            elsewhere.append(key)
    close = [key for leaf in difflib.get_close_matches(last, leaves, n=2) for key in leaves[leaf]] or elsewhere
    return f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else ""


def all_keys() -> Iterator[str]:
    """Every key of the schema, with dots."""
    yield from _keys_of(Config, "")


def _keys_of(schema: Any, prefix: str) -> Iterator[str]:
    types = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        yield prefix + field.name
        if dataclasses.is_dataclass(types[field.name]):
            yield from _keys_of(types[field.name], f"{prefix}{field.name}.")


def _missing_file(error: MissingConfigException) -> str:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    options = GlobalHydra.instance().config_loader().get_group_options(group) if group else []
    listing = f" (there are: {', '.join(options)})" if options else ""
    meant = nearest(name, options)
    own = f"; one of your own is DIR/{group}/{name}.yaml, with --config-dir DIR" if group and not meant else ""
    return f"there is no {group or 'configuration'} '{name}'{meant}{listing}{own}"


def _bad_value(cause: OmegaConfBaseException) -> str:
    key = f" for {cause.full_key}" if cause.full_key else ""
    hint = "; in single quotes ${…} stays as it is" if isinstance(cause, InterpolationResolutionError) else ""
    return f"bad value{key}: {_first_line(cause)}{hint}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
