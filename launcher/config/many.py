"""Many configurations that differ in a few values: composed once, and changed for each.

Hydra composes each run of a sweep from nothing, which takes 50 ms and more. Here only what can change which files take
part (a choice of a group, a key that is added or deleted) is composed anew; other values are set in the composed tree.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, ListConfig, OmegaConf

from launcher.config.compose import (
    Composed,
    as_hydra_reads,
    complaining,
    compose_tree,
    composing,
    finish,
)
from launcher.config.directories import group_options


class Composer:
    """Composes the runs of a sweep; what it has composed once it keeps."""

    def __init__(self, config_dirs: Sequence[str] = ()) -> None:
        self._config_dirs = config_dirs
        self._groups = {"agent", *group_options(config_dirs)}
        self._trees: dict[tuple[str, ...], DictConfig] = {}
        self._parse = functools.lru_cache(maxsize=None)(_parse)

    def each(self, runs: Sequence[Sequence[str]]) -> Iterator[Composed]:
        """The configuration of each run's overrides, in order.

        Raises:
            UserError: as :func:`launcher.config.compose.compose`.
        """
        varying = _varying(runs)
        with composing():
            for words in runs:
                yield self._one(words, varying)

    def _one(self, words: Sequence[str], varying: set[str]) -> Composed:
        with complaining():
            parsed = {word: self._parse(word) for word in words if word in varying}
        values = {word: value for word, value in parsed.items() if self._is_plain_value(value)}
        tree = self._tree(tuple(word for word in words if word not in values))
        with _changed(tree, list(values.values())):
            return finish(tree)

    def _tree(self, words: tuple[str, ...]) -> DictConfig:
        if words not in self._trees:
            self._trees[words] = compose_tree(words, self._config_dirs)
        return self._trees[words]

    def _is_plain_value(self, override: Override) -> bool:
        """True for one that sets an existing key to a value that is no container, which could be merged."""
        group = override.key_or_group.split("/", maxsplit=1)[0] in self._groups
        changes = override.type is OverrideType.CHANGE and override.package is None and not group
        return changes and not isinstance(override.value(), (list, dict))


def _varying(runs: Sequence[Sequence[str]]) -> set[str]:
    """The overrides that not all runs have."""
    everywhere = set(runs[0]).intersection(*runs[1:]) if runs else set[str]()
    return {word for words in runs for word in words} - everywhere


def _parse(word: str) -> Override:
    return OverridesParser.create().parse_override(as_hydra_reads(word))


@contextlib.contextmanager
def _changed(tree: DictConfig, values: Sequence[Override]) -> Generator[None]:
    """The tree with other values, for a while."""
    before: list[tuple[str, Any]] = []
    with complaining():
        for value in values:
            before.append((value.key_or_group, _raw(tree, value.key_or_group)))
            OmegaConf.update(tree, value.key_or_group, value.value(), merge=False)
    yield
    for key, old in before:
        OmegaConf.update(tree, key, old, merge=False)


def _raw(tree: DictConfig, key: str) -> Any:
    """What stands at a key, an interpolation as it is written."""
    parent, _, leaf = key.rpartition(".")
    home = OmegaConf.select(tree, parent) if parent else tree
    node = home._get_node(leaf) if isinstance(home, DictConfig) else None
    return node if isinstance(node, (DictConfig, ListConfig)) or node is None else node._value()
