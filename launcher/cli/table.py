"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

_GAP = 2


@dataclass(frozen=True)
class Fit:
    """How a table is made narrower, where it has to be."""

    width: int
    elastic: str
    """The column that is cut short first."""
    least: int
    """How short, before others are left out."""
    dispensable: Sequence[str]
    """Columns that are left out, the first one first."""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], fit: Fit | None = None) -> str:
    """Rows under headings, each column as wide as its widest cell; a cell may have several lines.

    Columns without any content are left out.
    """
    kept = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    if fit is not None:
        kept, rows = _fitted(headings, rows, kept, fit)
    lines = [line for row in (headings, *rows) for line in _lines([row[index] for index in kept])]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _lines(cells: Sequence[str]) -> list[tuple[str, ...]]:
    return list(zip_longest(*(cell.split("\n") for cell in cells), fillvalue=""))


def _fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int], fit: Fit
) -> tuple[list[int], list[list[str]]]:
    """Leave out what may be until the rest fits, then cut the elastic column; cells of one line only."""
    widths = [max(len(row[index]) for row in (headings, *rows)) for index in range(len(headings))]
    elastic = headings.index(fit.elastic)
    least, kept = min(widths[elastic], fit.least), list(kept)
    for name in fit.dispensable:
        if _room(kept, widths, elastic, fit.width) < least:
            kept = [index for index in kept if headings[index] != name]
    room = max(_room(kept, widths, elastic, fit.width), least)
    cut = [[short(cell, room) if index == elastic else cell for index, cell in enumerate(row)] for row in rows]
    return kept, cut


def _room(kept: Sequence[int], widths: Sequence[int], elastic: int, width: int) -> int:
    """What is left for the elastic column."""
    return width - sum(widths[index] + _GAP for index in kept if index != elastic)


def short(text: str, width: int) -> str:
    """A text, cut to so many characters."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
