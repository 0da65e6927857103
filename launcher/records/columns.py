"""A table of records, by columns, without any package: what pandas and others take as it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard


class Table:
    """Columns of equal length. As with a DataFrame, ``len`` counts rows, and ``in`` and iteration are about columns.

    ``dict(table)`` gives the columns by name: ``pandas.DataFrame(dict(table))``.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take in records; what a record does not have is None in its row."""
        self._columns: dict[str, list[Any]] = {}
        self._rows = 0
        for record in records:
            for name in record.keys() - self._columns.keys():
                self._columns[name] = [None] * self._rows
            for name, column in self._columns.items():
                column.append(record.get(name))
            self._rows += 1

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in alphabetical order."""
        return sorted(self._columns)

    def keys(self) -> list[str]:
        return self.columns

    def __getitem__(self, name: str) -> list[Any]:
        """A column.

        Raises:
            KeyError: there is no such column; the message names those that there are.
        """
        if name not in self._columns:
            raise KeyError(f"no column '{name}': there are {', '.join(self.columns) or 'none'}")
        return self._columns[name]

    def get(self, name: str) -> list[Any]:
        """A column; gaps where there is none."""
        return self._columns.get(name, [None] * self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return self._rows

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, as dictionaries."""
        for index in range(self._rows):
            yield {name: self._columns[name][index] for name in self.columns}

    def numeric(self) -> list[str]:
        """The columns that hold numbers, or a number here and there."""
        return [name for name in self.columns if any(map(is_number, self._columns[name]))]

    def __repr__(self) -> str:
        return f"<{self._rows} rows: {', '.join(self.columns)}>"


def is_number(value: Any) -> TypeGuard[float]:
    """True for what can be drawn or sorted as a number; a bool is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def finite(value: Any) -> Any:
    """Without the numbers that JSON has no word for; a loss that is no number becomes None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, (list, tuple)) else value
