"""The metrics of a run as curves, with its attempts marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.records.columns import Table, is_number
from launcher.records.reading import Run, Try
from launcher.records.result import COMPLETED
from launcher.report.page import Block, Chart, Section, Switch, Words, size_for
from launcher.report.thin import Point, averaged, rounded, thinned

MOST_POINTS = 2000
"""Of a curve: more than a screen has columns."""
_FIRST = {"return_mean": "Return", "fps": "Throughput"}
_TITLES = {**_FIRST, "length_mean": "Episode length"}
_UNITS = {"fps": "frames/s", "collect_time": "s", "learn_time": "s"}
_NOT_DRAWN = {"iteration", "time", "attempt", "env_steps"}
_STRETCHES = 400
_MOST_METRICS = 40

OVER = Switch((("iteration", "Iterations"), ("seconds", "Time")))


def metric_sections(run: Run, began: float, lines: int | None) -> list[Section]:
    """The return and the throughput in large, all other metrics in small, over iterations or time."""
    table = run.metrics
    names = [name for name in table.numeric() if name not in _NOT_DRAWN]
    first = [name for name in _FIRST if name in names]
    others = [name for name in names if name not in first]
    if not names:
        none = "No metrics are on record: metrics.jsonl is not there, or has no numbers."
        return [Section("Training", [Words(none)])]
    marks = attempt_marks(run, began)
    large = first or others[:2]
    small = [name for name in others if name not in large]
    blocks: list[Block] = [OVER, *(_chart(table, name, began, marks, size_for(len(large)), 280) for name in large)]
    if text := thinning(table, lines):
        blocks.append(Words(text))
    sections = [Section("Training", blocks)]
    if small:
        drawn = [_chart(table, name, began, marks, size_for(len(small)), 180) for name in small[:_MOST_METRICS]]
        left = [Words(f"Not drawn: {', '.join(small[_MOST_METRICS:])}")] if len(small) > _MOST_METRICS else []
        sections.append(Section("Other metrics", [*drawn, *left]))
    return sections


def thinning(table: Table, lines: int | None) -> str:
    """What was left out of the curves, in words."""
    parts: list[str] = []
    if lines is not None and len(table) >= lines:
        parts.append(f"metrics.jsonl is long: {len(table):,} of its lines were read, evenly spread.")
    if len(table) > MOST_POINTS:
        parts.append(
            f"Drawn are the lowest and the highest value of each of {MOST_POINTS // 2:,} stretches, "
            f"and the mean of each of {_STRETCHES}."
        )
    return " ".join(parts)


def _chart(table: Table, name: str, began: float, marks: Any, size: str, height: int) -> Chart:
    title = _TITLES.get(name, name.replace("_", " "))
    data = {"series": _series(name, points_of(table, name, began)), "marks": marks, "y": _UNITS.get(name, "")}
    return Chart("curves", title, data, size, height)


def points_of(table: Table, name: str, began: float) -> list[Point]:
    """A metric over iterations and seconds."""
    return [
        (at if is_number(at) else index + 1, time - began if is_number(time) else None, float(value))
        for index, (at, time, value) in enumerate(zip(table.get("iteration"), table.get("time"), table.get(name)))
        if is_number(value)
    ]


def _series(name: str, points: Sequence[Point]) -> list[Mapping[str, Any]]:
    """The points themselves; of many the lowest and the highest, pale, and above them the mean."""
    if len(points) <= MOST_POINTS:
        return [{"name": name, "points": _drawn(points)}]
    pale = {"name": "lowest and highest", "points": _drawn(thinned(points, MOST_POINTS)), "pale": True}
    return [pale, {"name": "mean", "points": _drawn(averaged(points, _STRETCHES))}]


def _drawn(points: Sequence[Point]) -> list[list[float | None]]:
    return [[at, rounded(seconds, 7), rounded(value)] for at, seconds, value in points]


def attempt_marks(run: Run, began: float) -> list[Mapping[str, Any]]:
    """Where each attempt begins and ends, in iterations and in seconds, and how it ended."""
    return [mark for one in run.attempts if (mark := _mark(run, one, began))]


def _mark(run: Run, one: Try, began: float) -> Mapping[str, Any]:
    if one.began is None:
        return {}
    following = next((later.start for later in run.attempts if later.number > one.number and later.start), {})
    verdict = one.verdict
    return {
        "name": f"attempt {one.number + 1}",
        "iterations": [one.start.get("resumed_at", 0), following.get("resumed_at")],
        "seconds": [one.began - began, ended(one) - began],
        "ended": "" if verdict is None or verdict.outcome == COMPLETED else verdict.cause.replace("_", " "),
    }


def ended(one: Try) -> float:
    """When an attempt was last heard of, in seconds since the epoch."""
    last = [event["time"] for event in one.events if is_number(event.get("time"))]
    sampled = (path.stat().st_mtime for path in one.directory.path.glob("samples-*.jsonl")) if not one.verdict else ()
    return max([*last, *sampled, one.began or 0.0])
