"""Messages through a standard output that several nodes share: srun mixes lines that are longer than 1,024 bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST_PIECE = 800
"""Characters of a message in one line."""


def in_pieces(word: str, key: str, message: Mapping[str, Any]) -> list[str]:
    """A message as lines: the word that says what it is, a key that no other message has, a piece of its JSON."""
    text = json.dumps(message)
    return [f"{word} {key} {text[start : start + _LONGEST_PIECE]}" for start in range(0, len(text), _LONGEST_PIECE)]


class Messages:
    """Puts messages together again, whatever else stands in the output."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._texts: dict[str, str] = {}

    def take(self, line: str) -> tuple[str, Any] | None:
        """Take in a line; returns the key and the message that it completes, if it does."""
        word, _, rest = line.rstrip("\r\n").partition(" ")
        key, _, piece = rest.partition(" ")
        if word != self._word:
            return None
        text = self._texts[key] = self._texts.get(key, "") + piece
        try:
            return (key, json.loads(text)) if piece.endswith("}") else None
        except ValueError:  # more of it is to come
            return None


def messages(word: str, output: str) -> Iterator[tuple[str, Any]]:
    """The keys and messages that are complete in an output."""
    found = Messages(word)
    for line in output.splitlines():
        if (message := found.take(line)) is not None:
            yield message
