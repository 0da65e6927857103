"""The catalogue of known NCCL settings: one small file each, ours in ``conf/nccl`` and the user's own."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from launcher.config.complaints import explain, nearest
from launcher.config.schema import Workaround
from launcher.errors import UserError


@dataclass(frozen=True)
class Catalogue:
    """The entries that lie in ``nccl/`` of these directories; the first directory that has a name defines it."""

    directories: tuple[Path, ...]
    recorded: Mapping[str, DictConfig] = dataclasses.field(default_factory=dict)
    """Entries that a configuration holds in full, as the record of a run does: they come before all files."""

    def names(self) -> list[str]:
        return sorted({path.stem for directory in self.directories for path in (directory / "nccl").glob("*.yaml")})

    def node(self, name: str) -> DictConfig:
        """An entry as it is written, interpolations and all, with its types checked.

        Raises:
            UserError: there is none of that name, or its file is no entry.
        """
        if name in self.recorded:
            return self.recorded[name]
        path = self._path(name)
        try:
            return copy.deepcopy(_read(path, path.stat().st_mtime_ns))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except Exception as error:
            if (complaint := explain(error)) is None:
                raise
            raise UserError(f"{path}: {complaint}") from error

    def entries(self) -> dict[str, Workaround]:
        """All entries, bundles too. What only a profile can give stands in them as ``${cluster.…}``."""
        return {name: _unresolved(self.node(name)) for name in self.names()}

    def expand(self, names: Sequence[str]) -> list[str]:
        """The names of single entries: each bundle replaced by what it stands for, each entry once.

        Raises:
            UserError: one of the names is unknown.
        """
        found: dict[str, None] = {}
        for name in names:
            found |= dict.fromkeys(self._members(name, ()))
        return list(found)

    def _members(self, name: str, parents: tuple[str, ...]) -> Iterator[str]:
        if name in parents:
            raise UserError(f"nccl: the bundle '{name}' stands for itself")
        bundle = self.node(name).bundle
        if not bundle:
            yield name
        for member in bundle:
            yield from self._members(member, (*parents, name))

    def _path(self, name: str) -> Path:
        for directory in self.directories:
            path = directory / "nccl" / f"{name}.yaml"
            if path.is_file() and "/" not in name:
                return path
        known = self.names()
        raise UserError(f"there is no nccl entry '{name}'{nearest(name, known)} (there are: {', '.join(known)})")


def _unresolved(node: DictConfig) -> Workaround:
    plain: Any = OmegaConf.to_container(node, resolve=False)
    return Workaround(**plain)


@functools.lru_cache(maxsize=256)
def _read(path: Path, changed_ns: int) -> DictConfig:
    """A file's entry; a sweep composes a thousand runs with the same few."""
    fields = [field.name for field in dataclasses.fields(Workaround)]
    written = OmegaConf.load(path)
    for key in map(str, written):
        if not isinstance(written, DictConfig) or key not in fields:
            raise UserError(f"an entry of the catalogue has no key '{key}'{nearest(key, fields)}")
    node = OmegaConf.merge(OmegaConf.structured(Workaround), written)
    assert isinstance(node, DictConfig)
    if node.bundle and (node.env or node.log_files):
        raise UserError("a bundle stands for other entries and sets nothing itself")
    return node


@dataclass(frozen=True)
class Match:
    """An entry that fits an error text, and the parts of the text that it knows."""

    name: str
    entry: Workaround
    texts: tuple[str, ...]


def matches(text: str, entries: dict[str, Workaround]) -> list[Match]:
    """The entries whose patterns are found in a text, the best first: most patterns, then the longest finding.

    Raises:
        UserError: a pattern of an entry is no regular expression.
    """
    line = " ".join(text.split())  # a terminal breaks lines anywhere
    found = [Match(name, entry, tuple(_findings(name, entry, line))) for name, entry in entries.items()]
    return sorted((match for match in found if match.texts), key=_goodness, reverse=True)


def _findings(name: str, entry: Workaround, line: str) -> Iterator[str]:
    for pattern in entry.match:
        try:
            found = re.search(pattern, line, re.IGNORECASE)
        except re.error as error:
            raise UserError(f"nccl entry '{name}': '{pattern}' is no regular expression: {error}") from error
        if found is not None:
            yield found[0]


def _goodness(match: Match) -> tuple[int, int]:
    return len(match.texts), max(map(len, match.texts))
