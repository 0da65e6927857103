"""The page of a sweep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.records.columns import is_number
from launcher.records.files import Record, read_json
from launcher.records.notes import notes_in
from launcher.records.overrides import value_of, varying
from launcher.records.reading import load_run
from launcher.records.scaling import title_of
from launcher.records.status import Status
from launcher.records.sweepdir import SweepDir
from launcher.report.curves import OVER, points_of
from launcher.report.origin import provenance_section
from launcher.report.page import (
    QUIET,
    Block,
    Cell,
    Chart,
    Grid,
    Page,
    Section,
    Tiles,
    Words,
    few,
    number,
    size_for,
    unit_of,
)
from launcher.report.run import TONES, made_now
from launcher.report.scaling import scaling_findings, scaling_sections, scaling_tiles
from launcher.report.thin import rounded, thinned
from launcher.submission.secrets import mask

_MOST_POINTS = 20_000
"""Of the curves of all runs together."""
_MOST_CURVES = 300
_MOST_AXES = 10


@dataclass(frozen=True)
class Member:
    """A run of the sweep."""

    status: Status
    values: Mapping[str, Cell]
    """What tells it from the others: the values of its overrides, by key."""
    objective: float | None

    @property
    def label(self) -> str:
        """Its number, and what it was given."""
        chosen = ", ".join(f"{_last(key)}={number(value)}" for key, value in self.values.items())
        return f"{self.status.run_id.rpartition('-')[2]} {chosen}".strip()


def sweep_page(sweep: SweepDir, whole: Status, statuses: Sequence[Status], scaling: Record | None = None) -> Page:
    """The runs of a sweep side by side: a table, and what the objective depends on.

    Args:
        sweep: its directory.
        whole: the sweep as one line.
        statuses: those of its runs, in the sweep's order.
        scaling: of a benchmark of scaling what it has shown, which then takes the objective's place.
    """
    metric = str(sweep.read().get("sweep", {}).get("metric") or "return_mean")
    members = _members(sweep, statuses, metric)
    keys = list(members[0].values) if members else []
    table = Section("Runs", [_table(members, keys, metric)])
    head: list[Block] = [Words(whole.detail, TONES.get(whole.state, QUIET))]
    head += [Words(f"Note of {note.line()}") for note in notes_in(sweep.path)]
    if scaling is None:
        curves, unit = _curves(members, metric)
        lead = f"{len(members)} runs · objective {metric}"
        head += [Tiles([*_extremes(members, metric), *_states(members)])]
        shown = [table, *_objective(members, keys, metric), *curves]
    else:
        lead, unit = f"scaling of {title_of(scaling['asked'])}", (1.0, "s")
        head += [*scaling_findings(scaling), Tiles([*scaling_tiles(scaling), *_states(members)])]
        shown = [*scaling_sections(scaling), table]
    return Page(
        title=sweep.sweep_id,
        state=whole.state,
        tone=TONES.get(whole.state, QUIET),
        lead=lead,
        sections=[Section("", head), *shown, provenance_section(read_json(sweep.provenance) or {}, _plan(members))],
        made=made_now(str(sweep.path)),
        unit=unit,
    )


def _plan(members: Sequence[Member]) -> Record:
    """Of the first run, without what the runs may differ in."""
    plan = (read_json(Path(members[0].status.run_dir) / "plan.json") if members else None) or {}
    return {"training": {"library": (plan.get("training") or {}).get("library")}}


def _members(sweep: SweepDir, statuses: Sequence[Status], metric: str) -> list[Member]:
    shown = {run_id: list(map(mask, words)) for run_id, words in sweep.overrides().items()}
    return [
        Member(one, values, _number(one.metrics.get(metric))) for one, values in zip(statuses, varying(shown).values())
    ]


def _number(value: Any) -> float | None:
    return value if is_number(value) and math.isfinite(value) else None


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _names(keys: Sequence[str]) -> list[str]:
    """The keys' last parts, where these tell them apart."""
    short = [_last(key) for key in keys]
    return [name if short.count(name) == 1 else key for key, name in zip(keys, short)]


def _extremes(members: Sequence[Member], metric: str) -> list[tuple[str, str, str]]:
    """Of which one is the best: which one, only the reader knows."""
    measured = sorted((one for one in members if one.objective is not None), key=lambda one: one.objective or 0)
    ends = [("highest", measured[-1]), ("lowest", measured[0])] if measured else []
    return [(f"{word} {metric}", number(one.objective), one.label) for word, one in ends]


def _states(members: Sequence[Member]) -> list[tuple[str, str, str]]:
    states = Counter(one.status.state for one in members)
    return [(state, str(count), "") for state, count in states.most_common()]


def _table(members: Sequence[Member], keys: Sequence[str], metric: str) -> Grid:
    extra = [] if metric == "return_mean" else [metric]
    headings = ["run", *_names(keys), "state", "cause", "iteration", *extra, "return", "frames/s", "attempts", "nodes"]
    rows = [
        [
            one.status.run_id.rpartition("-")[2],
            *(one.values.get(key) for key in keys),
            one.status.state,
            ": ".join(filter(None, [one.status.detail.replace("_", " "), one.status.message])),
            one.status.iteration,
            *([one.objective] if extra else []),
            one.status.return_mean,
            one.status.fps,
            one.status.attempts,
            few(one.status.nodes.split(","), 2),
        ]
        for one in members
    ]
    numbers = {index for index, cells in enumerate(zip(*rows)) if _all_numbers(cells)}
    return Grid("runs", headings, rows, TONES, numbered=frozenset(numbers - {0}))


def _all_numbers(cells: Sequence[Cell]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(is_number(cell) for cell in known)


def _objective(members: Sequence[Member], keys: Sequence[str], metric: str) -> list[Section]:
    """Parallel coordinates over all parameters, and the objective over each."""
    measured = [one for one in members if one.objective is not None]
    if not measured or not keys:
        return []
    shown = keys[:_MOST_AXES]
    axes = [_axis(name, [one.values.get(key) for one in measured]) for key, name in zip(shown, _names(shown))]
    axes.append(_axis(metric, [one.objective for one in measured], few=0))
    rows = [[*(one.values.get(key) for key in shown), rounded(one.objective)] for one in measured]
    data = {"axes": axes, "rows": rows, "labels": [one.label for one in measured]}
    blocks: list[Block] = [Chart("parallel", "Parallel coordinates", data, "full", 340)]
    blocks += [Chart("scatter", f"{metric} over {axis['name']}", {**data, "x": index}, size_for(len(axes) - 1), 240)
               for index, axis in enumerate(axes[:-1])]  # fmt: skip
    if len(keys) > len(shown):
        blocks.append(Words(f"The first {len(shown)} of {len(keys)} parameters are drawn."))
    return [Section(f"What {metric} depends on", blocks)]


def _axis(name: str, values: Sequence[Cell], few: int = 6) -> Mapping[str, Any]:
    """Numbers on a line, on a logarithmic one where they span much; as categories what has few values, or words."""
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values) or len(set(numbers)) <= few:
        return {"name": name, "type": "category", "categories": sorted({str(value) for value in values}, key=_natural)}
    spread = min(numbers) > 0 and max(numbers) / min(numbers) >= 50
    return {"name": name, "type": "log" if spread else "value"}


def _natural(text: str) -> tuple[bool, float, str]:
    value = value_of(text)
    return (False, value, "") if isinstance(value, (int, float)) else (True, 0.0, text)


def _span(members: Sequence[Member]) -> tuple[float, float]:
    """The lowest and the highest objective."""
    values = [one.objective for one in members if one.objective is not None]
    return min(values, default=0.0), max(values, default=1.0)


def _curves(members: Sequence[Member], metric: str) -> tuple[list[Section], tuple[float, str]]:
    """The objective of each run while it trained; of each run's own time."""
    read = [one for one in members if metric in one.status.metrics]
    shown = read[:: math.ceil(len(read) / _MOST_CURVES)] if read else []
    if not shown:
        return [], (1.0, "s")
    most = max(min(_MOST_POINTS // len(shown), 2000), 20)
    courses = [_course(one, metric, most) for one in shown]
    series = [{"name": one.label, "points": points, "colour": one.objective} for one, points in zip(shown, courses)]
    data = {"series": series, "marks": [], "y": "", "of": f"last {metric}", "ramp": _span(shown)}
    note = f"{len(shown)} of {len(read)} runs are drawn, evenly chosen. " if len(shown) < len(read) else ""
    blocks = [
        OVER,
        Chart("curves", metric, data, "full", 360),
        Words(f"{note}At most {most:,} points of a run are drawn."),
    ]
    longest = max((points[-1][1] or 0.0 for points in courses if points), default=0.0)
    return [Section("Learning curves", blocks)], unit_of(longest)


def _course(member: Member, metric: str, most: int) -> list[list[float | None]]:
    """The objective of a run, over iterations and over the seconds since its first."""
    metrics = load_run(Path(member.status.run_dir), most_lines=most).metrics
    began = min(filter(is_number, metrics.get("time")), default=0.0)
    points = thinned(points_of(metrics, metric, began), most)
    return [[at, rounded(seconds), rounded(value)] for at, seconds, value in points]
