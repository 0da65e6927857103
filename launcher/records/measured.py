"""What a benchmark has measured, in few numbers: mean and spread of series, rates, and ranks side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

PARTS = ("iteration_s", "collect_s", "learn_s", "sync_s")
"""Seconds of an iteration: from one to the next; stepping; the update, its collectives among it; those alone."""


def mean_std(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, standard deviation of the single values (0 for one), and the largest; the form of Isaac Lab's MeanStd."""
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else 0.0, "peak": max(values)}


def rate(work: float, seconds: Sequence[float]) -> dict[str, float | None] | None:
    """So much work each time, per second: all of it over all of the time; spread and peak are those of single times."""
    if not seconds or not sum(seconds) > 0:
        return None
    single = [work / one for one in seconds if one > 0]
    return {**mean_std(single), "mean": work * len(seconds) / sum(seconds)}


def summary(frames: int, series: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """A rank's measurement.

    Args:
        frames: steps of all its environments in an iteration.
        series: of each of :data:`PARTS` that is known the seconds, iteration by iteration.

    Returns:
        ``iterations``, ``frames``, of each part mean and spread, and the rates ``collection_fps`` (while stepping),
        ``total_fps`` and ``iterations_per_s``.
    """
    whole = series.get("iteration_s", ())
    return {
        "iterations": len(whole),
        "frames": frames,
        "wall_s": sum(whole),
        **{name: mean_std(series[name]) if series.get(name) else None for name in PARTS},
        "collection_fps": rate(frames, series.get("collect_s", ())),
        "total_fps": rate(frames, whole),
        "iterations_per_s": rate(1, whole),
    }


def side_by_side(values: Mapping[int, float], hosts: Mapping[int, str]) -> dict[str, Any] | None:
    """The ranks' values of one quantity, of which a large one is bad: min, median, max, the slowest rank, its host."""
    if not values:
        return None
    slowest = max(values, key=lambda rank: values[rank])
    return {
        "min": min(values.values()),
        "median": median(values.values()),
        "max": values[slowest],
        "slowest_rank": slowest,
        "slowest_host": hosts.get(slowest),
    }
