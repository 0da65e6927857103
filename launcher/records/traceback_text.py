"""The errors that a rank's log ends with, as Python prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_START = "Traceback (most recent call last):"
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:: ?.*)?")
_BARE = re.compile(r"[\w.]*(?:Error|Exception|Interrupt)(?:: .*)?")
_OF_RANK = re.compile(r"\[rank\d+\]: ?")
_LINK = re.compile(r"The above exception was the direct cause|During handling of the above exception")
_IGNORED = "Exception ignored in"
LONGEST = 300
"""Characters of an error in a line of a verdict."""
_MOST_LINES = 12
"""Of one exception's text: what follows may be other output."""


def last_error(text: str) -> str:
    """The exception that a log ends with, as ``Type: message``, of its first line; empty where there is none."""
    found = exceptions(text)
    return found[-1].splitlines()[0][:LONGEST] if found else ""


def exceptions(text: str) -> list[str]:
    """The last exception of a log and those that led to it, the first cause first, each ``Type: message``, all lines.

    torch repeats the traceback of a rank with ``[rank0]:`` before each line; that form is read too. A traceback that
    Python prints while it tidies up (``Exception ignored in``) is none that ended anything.
    """
    lines = _plain(text)
    chain = _last_chain(lines)
    if not chain:  # a script that cannot be compiled has no traceback
        last = (text.strip().splitlines() or [""])[-1].strip()
        return [last] if _BARE.fullmatch(last) else []
    return [error for start in chain if (error := _error(lines, start))]


def last_traceback(text: str) -> str:
    """The lines of the last traceback of a log, with those that led to it; empty where there is none."""
    lines = _plain(text)
    chain = _last_chain(lines)
    if not chain:
        return ""
    begin, last = chain[0], _error_line(lines, chain[-1])
    return "\n".join(lines[begin:] if last is None else [*lines[begin:last], *_text_of(lines, last)])


def _plain(text: str) -> list[str]:
    return [_OF_RANK.sub("", line, count=1) if line.startswith("[rank") else line for line in text.splitlines()]


def _last_chain(lines: Sequence[str]) -> list[int]:
    """Where the tracebacks of the last chain begin."""
    chain: list[int] = []
    for index, line in enumerate(lines):
        if not line.endswith(_START) or (index and lines[index - 1].startswith(_IGNORED)):
            continue
        linked = any(_LINK.match(before) for before in lines[max(0, index - 2) : index])
        chain = [*chain, index] if linked else [index]
    return chain


def _error(lines: Sequence[str], start: int) -> str:
    found = _error_line(lines, start)
    return "" if found is None else "\n".join(_text_of(lines, found))


def _error_line(lines: Sequence[str], start: int) -> int | None:
    """The first line at the traceback's own depth that is not part of it."""
    depth = len(lines[start]) - len(lines[start].lstrip())
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if line[depth : depth + 1] not in ("", " ") and _ERROR.fullmatch(line.strip()):
            return index
    return None


def _text_of(lines: Sequence[str], error: int) -> list[str]:
    return list(_until_the_next(lines[error : error + _MOST_LINES]))


def _until_the_next(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if line.endswith(_START) or _LINK.match(line) or line.startswith(_IGNORED):
            return
        yield line.rstrip()
