"""How busy the nodes and their GPUs were, from the samples of their agents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from launcher.records.columns import is_number
from launcher.records.files import Record
from launcher.records.reading import Run
from launcher.report.page import Block, Chart, Section, Words, size_for
from launcher.report.thin import means, rounded, thinned

LINES = 20_000
"""Of all files of samples together: so many are read."""
_MOST_LINES = 8
"""Curves in a chart; more of them become a map of colours."""
_MOST_ROWS = 64
_COLUMNS = 240
_MOST_POINTS = 600

Read = Callable[[Record], Iterator[tuple[str, float]]]


def machine_section(run: Run, began: float) -> Section:
    """A chart per measure: a curve for each node or GPU, or a map with a row for each where there are many."""
    by_measure = _series(run, began)
    measured = {name: series for name, series in by_measure.items() if series}
    charts = [_chart(name, series, size_for(len(measured))) for name, series in measured.items()]
    if not charts:
        return Section("GPUs and hosts", [Words("No samples are on record: a node writes the first after 5 s.")])
    return Section("GPUs and hosts", [*charts, *_problems(run)])


def _series(run: Run, began: float) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Points (seconds, value) by measure and by what was measured; the samples are gone through once."""
    files = sum(len(list(one.directory.path.glob("samples-*.jsonl"))) for one in run.attempts)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {name: defaultdict(list) for name in _MEASURES}
    for attempt in run.attempts:
        for sample in attempt.samples(max(LINES // max(files, 1), 100)):
            if is_number(sample.get("time")):
                for name, (read, _) in _MEASURES.items():
                    for what, value in read(sample):
                        found[name][what].append((sample["time"] - began, value))
    return found


def _of_gpus(key: str, scale: float) -> Read:
    def read(sample: Record) -> Iterator[tuple[str, float]]:
        for index, gpu in enumerate(_gpus(sample)):
            if is_number(value := gpu.get(key)):
                yield f"{sample['host']} GPU {gpu.get('index', index)}", value * scale

    return read


def _gpus(sample: Record) -> list[Mapping[str, Any]]:
    gpus = sample.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _of_host(key: str, scale: float) -> Read:
    def read(sample: Record) -> Iterator[tuple[str, float]]:
        if is_number(value := sample.get(key)):
            yield sample["host"], value * scale

    return read


_MEASURES: dict[str, tuple[Read, str]] = {
    "GPU use": (_of_gpus("utilisation", 100), "%"),
    "GPU memory": (_of_gpus("memory_used_mb", 1 / 1024), "GiB"),
    "GPU power": (_of_gpus("power_w", 1), "W"),
    "GPU temperature": (_of_gpus("temperature", 1), "°C"),
    "CPU use": (_of_host("cpu", 100), "%"),
    "Host memory": (_of_host("memory_used_mb", 1 / 1024), "GiB"),
    "Free disk": (_of_host("disk_free_mb", 1 / 1024), "GiB"),
}
"""How each is read from a sample, and its unit."""


def _chart(name: str, series: Mapping[str, list[tuple[float, float]]], size: str) -> Chart:
    unit = _MEASURES[name][1]
    if len(series) > _MOST_LINES:
        return _map(name, series, unit)
    drawn = [
        {"name": what, "points": [
            [None, rounded(seconds, 7), rounded(value, 4)]
            for _, seconds, value in thinned([(None, at, value) for at, value in points], _MOST_POINTS)
        ]}
        for what, points in series.items()
    ]  # fmt: skip
    data = {
        "series": drawn,
        "marks": [],
        "y": unit,
        "time_only": True,
        "zero": True,
        "top": 100 if unit == "%" else None,
    }
    return Chart("curves", name, data, size, 220)


def _map(name: str, series: Mapping[str, list[tuple[float, float]]], unit: str) -> Chart:
    """A row per node where the GPUs are too many for rows of their own."""
    rows = _merged(series) if len(series) > _MOST_ROWS else series
    shown = dict(list(rows.items())[:_MOST_ROWS])
    end = max(points[-1][0] for points in rows.values())
    columns = min(max(map(len, series.values())) // 2 + 1, _COLUMNS)  # no stripes of columns without a sample
    cells = [
        [column, row, rounded(value, 3)]
        for row, points in enumerate(shown.values())
        for column, value in enumerate(means(points, end, columns))
        if value is not None
    ]
    title = name if len(shown) == len(rows) else f"{name} (the first {len(shown)} of {len(rows)} nodes)"
    top = 100 if unit == "%" else max(cell[2] or 0 for cell in cells)
    data = {"rows": list(shown), "cells": cells, "columns": columns, "end": end, "y": unit, "ramp": [0, top]}
    return Chart("heat", title, data, "half", 60 + max(len(shown) * 8, 200))


def _merged(series: Mapping[str, list[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    merged: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, points in series.items():
        merged[name.partition(" GPU ")[0]] += points
    return {name: sorted(points) for name, points in merged.items()}


def _problems(run: Run) -> Iterable[Block]:
    """Why there is nothing of the GPUs, where the ranks were to compute on some."""
    last = (sample for attempt in reversed(run.attempts) for sample in attempt.samples(1))
    problems = dict.fromkeys(sample["gpus_problem"] for sample in last if isinstance(sample.get("gpus_problem"), str))
    return [Words(f"GPUs could not be looked at: {problem}") for problem in problems]
