"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under headings, each column as wide as its widest cell; a cell may have several lines.

    Columns without any content are left out.
    """
    kept = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    lines = [line for row in (headings, *rows) for line in _lines([row[index] for index in kept])]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _lines(cells: Sequence[str]) -> list[tuple[str, ...]]:
    return list(zip_longest(*(cell.split("\n") for cell in cells), fillvalue=""))
