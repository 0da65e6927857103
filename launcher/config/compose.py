"""From the command line's overrides to a typed, checked :class:`Config`, through Hydra."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import OmegaConfDumper

from launcher.config import complaints, literals
from launcher.config.schema import Config
from launcher.errors import UserError

CONFIG_DIR_VARIABLE = "LAUNCHER_CONFIG_DIR"
"""Directories of the user's own tasks, clusters and libraries, separated by colons: the setting written once."""

_RECORDED = "recorded"
"""The name by which Hydra finds a configuration that was read from a run's records."""

_FREE_KEY = re.compile(r"(cluster\.(env|extra_directives)|task\.env_args|library\.env)[.=]|task\.args\.")
"""Mappings whose keys are the user's: `cluster.env.X=1` adds X, without Hydra's `+`."""


@dataclasses.dataclass(frozen=True)
class Composed:
    """A configuration in its two forms: typed objects, and the YAML that composes to the same again."""

    config: Config
    yaml: str


def builtin_config_dir() -> Path:
    """``conf/``: beside the package in a clone, inside it in an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def user_config_dirs(config_dirs: Sequence[str] = ()) -> list[Path]:
    """The directories given by ``--config-dir`` and by the environment, in that order.

    Raises:
        UserError: one of them is not a directory.
    """
    from_environment = os.environ.get(CONFIG_DIR_VARIABLE, "").split(":")
    found = [Path(text).expanduser().absolute() for text in [*config_dirs, *from_environment] if text]
    for path in found:
        if not path.is_dir():
            raise UserError(f"configuration directory '{path}' does not exist (--config-dir or {CONFIG_DIR_VARIABLE})")
    return found


def compose(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Composed:
    """The configuration that the overrides ask for.

    Raises:
        UserError: a group, key or value that does not exist or does not fit, with the nearest names.
    """
    with _hydra():
        arguments = [_search_path(user_config_dirs(config_dirs)), *map(_as_meant, overrides)]
        tree = _compose(arguments)
        if profile := list(tree.cluster.nccl):
            tree = _compose(_with_profile_nccl(arguments, profile))
        return Composed(_typed(tree), _to_yaml(tree))


def compose_file(name: str, overrides: Sequence[str], config_dirs: Sequence[str]) -> Composed:
    """The configuration of ``NAME.yaml`` in the first of the user's directories that has it: see :func:`recompose`.

    Raises:
        UserError: no directory has it; and as :func:`recompose`.
    """
    directories = user_config_dirs(config_dirs)
    for directory in directories:
        if (file := directory / f"{name}.yaml").is_file():
            return recompose(file, overrides)
    listing = ", ".join(f"'{directory}'" for directory in directories) or "no --config-dir that is given"
    raise UserError(f"--config-name {name}: there is no {name}.yaml in {listing}")


def recompose(file: Path, overrides: Sequence[str]) -> Composed:
    """The configuration of a file that holds all of it, as the config.yaml of a run, with single keys overridden.

    Raises:
        UserError: the file cannot be read or is no such configuration, or a key or value does not fit.
    """
    with _hydra():
        try:
            with _complaining():
                recorded = OmegaConf.load(file)
        except OSError as error:
            raise UserError(f"cannot read '{file}': {error.strerror}") from error
        assert isinstance(recorded, DictConfig)
        for key in (key for key in ("task", "library", "cluster") if key not in recorded):
            raise UserError(f"'{file}' is no whole configuration, as the config.yaml of a run is: it has no {key}")
        ConfigStore.instance().store(_RECORDED, {"defaults": ["schema", "_self_"], **recorded})
        tree = _compose([*map(_as_meant, overrides)], _RECORDED)
        return Composed(_typed(tree), _to_yaml(tree))


def group_options(config_dirs: Sequence[str] = ()) -> dict[str, list[str]]:
    """The choices of each group of the configuration, by directory look-up alone."""
    roots = [builtin_config_dir(), *user_config_dirs(config_dirs)]
    return {
        group: sorted({path.stem for root in roots for path in (root / group).glob("*.yaml")})
        for group in ("task", "library", "cluster", "nccl")
    }


@contextlib.contextmanager
def _hydra() -> Generator[None]:
    ConfigStore.instance().store("schema", Config)
    GlobalHydra.instance().clear()
    with _clock_times_stay_text(), initialize_config_dir(str(builtin_config_dir()), version_base="1.3"):
        yield


def _compose(arguments: list[str], name: str = "config") -> DictConfig:
    with _complaining():
        return hydra_compose(name, arguments)


@contextlib.contextmanager
def _complaining() -> Generator[None]:
    """Hydra's and OmegaConf's errors as one-line errors of the user; any other error is ours and stays as it is."""
    try:
        yield
    except Exception as error:
        complaint = complaints.explain(error)
        if complaint is None:
            raise
        raise UserError(complaint) from error


def _typed(tree: DictConfig) -> Config:
    for key in _added_keys(tree, Config, ""):
        raise UserError(complaints.unknown_key(key))
    with _complaining():
        config = OmegaConf.to_object(tree)
    assert isinstance(config, Config)
    return config


def _added_keys(tree: DictConfig, schema: Any, prefix: str) -> Iterator[str]:
    """Keys that ``+`` or ``++`` put where the schema has none."""
    known = {field.name for field in dataclasses.fields(schema)}
    for name in map(str, tree):
        child = tree._get_node(name)
        if name not in known:
            yield prefix + name
        elif isinstance(child, DictConfig) and dataclasses.is_dataclass(kind := OmegaConf.get_type(child)):
            yield from _added_keys(child, kind, f"{prefix}{name}.")


def _to_yaml(tree: DictConfig) -> str:
    """With every interpolation filled in: what it was filled in with may be another thing tomorrow."""
    plain = literals.escape_all(OmegaConf.to_container(tree, resolve=True, enum_to_str=True))
    return yaml.dump(plain, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes what would be read as something else."""


def _represent_text(dumper: Any, text: str) -> Any:
    """YAML takes four signs for line breaks, or for nothing, unless they are escaped in double quotes."""
    if any(sign in text for sign in "\x85\u2028\u2029\ufeff"):
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
    return OmegaConfDumper.str_representer(dumper, text)


_Dumper.add_representer(str, _represent_text)


def _as_meant(override: str) -> str:
    """The override as Hydra has to be told it."""
    try:
        override.encode()
    except UnicodeEncodeError:
        raise UserError(f"{override.partition('=')[0]}: the value is not valid UTF-8") from None
    free = "++" if _FREE_KEY.match(override) else ""
    return free + literals.keep_single_quoted(override)


def _search_path(directories: list[Path]) -> str:
    return f"hydra.searchpath=[{','.join(literals.quote(f'file://{path}') for path in directories)}]"


def _with_profile_nccl(arguments: list[str], profile: list[str]) -> list[str]:
    """The workarounds that the cluster's profile lists, and those of the command line after them."""
    ours = [argument for argument in arguments if argument.startswith("nccl=")]
    others = [argument for argument in arguments if not argument.startswith("nccl=")]
    asked = [name for argument in ours for name in argument[5:].strip("[]").split(",") if name.strip()]
    names = list(dict.fromkeys([*profile, *(name.strip() for name in asked)]))
    return [*others, f"nccl=[{','.join(names)}]"]


@contextlib.contextmanager
def _clock_times_stay_text() -> Generator[None]:
    """YAML 1.1 reads an unquoted ``time: 1:30:00`` as the number 5400; keep it as written, as YAML 1.2 does."""
    loader = yaml.SafeLoader
    before = loader.yaml_implicit_resolvers
    decimal = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
    loader.yaml_implicit_resolvers = {
        first: [(tag, decimal if tag == "tag:yaml.org,2002:int" else pattern) for tag, pattern in resolvers]
        for first, resolvers in before.items()
    }
    try:
        yield
    finally:
        loader.yaml_implicit_resolvers = before
