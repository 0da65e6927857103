"""What the word at the end of an unfinished command line could become. Standard library only: it has to be quick."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shlex
import typing
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from launcher.cli.main import VERBS
from launcher.config.directories import group_options
from launcher.config.schema import Config
from launcher.errors import UserError

_OF_RUNS = ("status", "logs", "why", "report", "cancel", "resume", "rerun", "note", "rm")
_COMPOSING = ("", "plan", "render", "commands", "doctor", "rerun")
_OF_NCCL = ("list", "explain", "diagnose")
_RUN_ID = re.compile(r"\d{8}-\d{6}-")
_DIRECTORIES = ("--config-dir", "-cd")


def split(line: str) -> list[str]:
    """The words of an unfinished line; the last one is what is being written, and may be empty."""
    for closed in (line, f"{line}'", f'{line}"'):
        try:
            words = shlex.split(closed)
        except ValueError:
            continue
        return [*words, ""] if not words or (line[-1:].isspace() and closed == line) else words
    return [*line.split(" ")]


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of the words, which follow ``python -m launcher``, could become; sorted."""
    *before, word = words or [""]
    verb = before[0] if before and before[0] in VERBS else ""
    return sorted({one for one in _all(verb, before, word) if one.startswith(word)})


def _all(verb: str, before: Sequence[str], word: str) -> Iterator[str]:
    if not before:
        yield from VERBS
    if verb in _OF_RUNS and not word.startswith("-"):
        yield from _runs(_runs_dir(before), word)
    if verb == "nccl":
        yield from _OF_NCCL
    if verb == "completion":
        yield from SHELLS
    if verb in _COMPOSING and not word.startswith("-"):
        yield from _of_configuration(before, word)


SHELLS = ("bash", "zsh")


def _runs_dir(before: Sequence[str]) -> Path:
    places = [one.partition("=")[2] for one in before if one.startswith("runs_dir=")]
    return Path(os.path.expanduser((places or ["runs"])[-1]))


def _runs(directory: Path, word: str) -> Iterator[str]:
    """Runs and sweeps by their names alone, and the runs of a sweep whose name is complete."""
    names = _names_in(directory)
    yield from names
    for sweep in (name for name in names if word.startswith(f"{name}-")):
        yield from _names_in(directory / sweep)


def _names_in(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if _RUN_ID.match(name)]
    except OSError:
        return []


def _of_configuration(before: Sequence[str], word: str) -> Iterator[str]:
    key, equals, value = word.partition("=")
    if not equals:
        yield from _keys(Config, key)
        return
    done = value[: max(value.rfind(sign) for sign in "[,+-") + 1] if key == "nccl" else value[: value.rfind(",") + 1]
    for choice in _choices(key, value, before):
        yield f"{key}={done}{choice}"


def _choices(key: str, value: str, before: Sequence[str]) -> list[str]:
    try:
        groups = group_options(_config_dirs(before))
    except UserError:
        groups = group_options()
    if key in groups:
        return groups[key]
    if key == "resume":
        return ["latest", *_runs(_runs_dir(before), value)]
    return _values(Config, key)


def _config_dirs(before: Sequence[str]) -> list[str]:
    given = [word.partition("=")[2] for word in before if word.startswith(tuple(f"{name}=" for name in _DIRECTORIES))]
    return [*given, *(after for word, after in itertools.pairwise(before) if word in _DIRECTORIES)]


def _keys(schema: Any, word: str, prefix: str = "") -> Iterator[str]:
    """Keys of a dataclass as far as the word has come: those within another come after its dot."""
    for name, kind in _fields(schema).items():
        path = f"{prefix}{name}"
        if not dataclasses.is_dataclass(kind):
            yield f"{path}="
        elif word.startswith(f"{path}."):
            yield from _keys(kind, word, f"{path}.")
        else:
            yield f"{path}."
            if prefix == "" and name in ("task", "library", "cluster"):
                yield f"{path}="


def _values(schema: Any, key: str) -> list[str]:
    """Of a key that has only some values."""
    name, _, rest = key.partition(".")
    kind = _fields(schema).get(name)
    if rest:
        return _values(kind, rest) if dataclasses.is_dataclass(kind) else []
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [one.value for one in kind]
    return ["false", "true"] if kind is bool else []


def _fields(schema: Any) -> dict[str, Any]:
    """The fields of a dataclass with their types; of an optional one the type that it may have."""
    return {name: _unwrapped(kind) for name, kind in typing.get_type_hints(schema).items()}


def _unwrapped(kind: Any) -> Any:
    inner = [one for one in typing.get_args(kind) if one is not type(None)]
    return inner[0] if typing.get_origin(kind) is typing.Union and len(inner) == 1 else kind
