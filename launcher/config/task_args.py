"""The arguments of a task's script: a list of words, or a mapping of options, as words of a command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def words(args: Any) -> list[str]:
    """`{lr: 0.1, layers: [1, 2], x: null}` as ``--lr 0.1 --layers 1 2``; a list word by word."""
    if isinstance(args, Mapping):
        return [word for key, value in args.items() if value is not None for word in _option(str(key), value)]
    return [as_word(value) for value in args or ()]


def value_of(name: str, given: list[str]) -> str | None:
    """The value of an option among words, spelled ``--name value`` or ``--name=value``; the last one counts."""
    found = None
    for position, word in enumerate(given):
        option, equals, value = word.partition("=")
        if option.startswith("--") and option[2:].replace("-", "_") == name:
            found = value if equals else "".join(given[position + 1 : position + 2])
    return found


def as_word(value: Any) -> str:
    """A value of the configuration as one word of a command line, spelled as YAML does."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _option(key: str, value: Any) -> Iterator[str]:
    yield f"--{key}"
    yield from map(as_word, value if isinstance(value, (list, tuple)) else [value])
