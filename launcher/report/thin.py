"""As many points as a screen can show: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

Point = tuple[float | None, float | None, float]
"""Iteration, seconds, value."""


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most about `most` points: of each of `most` / 2 equal stretches the lowest and the highest, as they come.

    No peak is lost by it. The first and the last point stay.
    """
    points = [point for point in points if math.isfinite(point[2])]
    if len(points) <= most:
        return [*points]
    stretches = max(most // 2 - 1, 1)
    inner, kept = len(points) - 2, [points[0]]
    for index in range(stretches):
        stretch = range(1 + inner * index // stretches, 1 + inner * (index + 1) // stretches)
        if stretch:
            low = min(stretch, key=lambda at: points[at][2])
            high = max(stretch, key=lambda at: points[at][2])
            kept += [points[at] for at in sorted({low, high})]
    return [*kept, points[-1]]


def averaged(points: Sequence[Point], stretches: int) -> list[Point]:
    """The means of so many equal stretches, each where its middle is."""
    points = [point for point in points if math.isfinite(point[2])]
    bounds = [len(points) * index // stretches for index in range(stretches + 1)]
    parts = [points[start:end] for start, end in pairwise(bounds) if start < end]
    return [(*part[len(part) // 2][:2], sum(point[2] for point in part) / len(part)) for part in parts]


def rounded(value: float | None, digits: int = 5) -> float | None:
    """A number with so many digits that matter: what a screen shows needs no more, and the page stays small."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) else short


def means(points: Sequence[tuple[float, float]], end: float, columns: int) -> list[float | None]:
    """The mean of the values in each of `columns` equal stretches of time up to `end`; None where there are none."""
    sums, counts = [0.0] * columns, [0] * columns
    for seconds, value in points:
        column = min(int(seconds / end * columns), columns - 1) if end > 0 else 0
        sums[column] += value
        counts[column] += 1
    return [total / count if count else None for total, count in zip(sums, counts)]
