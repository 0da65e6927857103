"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under headings, each column as wide as its widest cell; columns without any content are left out."""
    kept = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    lines = [[line[index] for index in kept] for line in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
