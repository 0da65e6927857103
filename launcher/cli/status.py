"""``status``: what runs, how far it is, how it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from launcher.cli import load
from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.statuses import statuses_of
from launcher.cli.table import table
from launcher.records import rundir, sweepdir
from launcher.records.nodes import bad_nodes
from launcher.records.result import COMPLETED, FAILED, STOPPED
from launcher.records.rundir import RunDir
from launcher.records.status import LOST, PENDING, RUNNING, UNKNOWN, Status
from launcher.records.sweepdir import SweepDir


@dataclass(frozen=True)
class Row:
    """A line of the table: a run, or a sweep as a whole."""

    status: Status
    overrides: str = ""
    """What tells a run of a sweep from the others."""
    metric: str = ""
    """The sweep's metric, where that is another one than the return."""


def status(argv: Sequence[str]) -> int:
    """``status [RUN|SWEEP ...] [--json]``: a table of runs, of a sweep's runs, or of all there is."""
    parser = parser_of("status", "What runs, how far it is, how it ended.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{RUN_HELP}; or a sweep's, for a table of its runs")
    parser.add_argument("--json", action="store_true", help="for programs: a list of objects")
    options, runs_dir = parse(parser, argv)
    rows = list(_chosen(options.runs, runs_dir) if options.runs else _all(runs_dir))
    if options.json:
        print(json.dumps([asdict(row.status) | {"overrides": row.overrides} for row in rows], indent=2))
    elif rows:
        print(table(_HEADINGS, [_cells(row) for row in rows]))
        if options.runs:
            _show_nodes([row.status for row in rows])
        _show_warnings([row.status for row in rows], options.runs)
        _show_bad_nodes(runs_dir)
    else:
        print(f"no runs in '{runs_dir}'")
    return 0


def _show_nodes(statuses: Sequence[Status]) -> None:
    """Of runs that were asked for by name: how busy each of their nodes is."""
    for one in statuses:
        if one.samples:
            print(f"\n{table(load.HEADINGS, [load.cells(sample) for sample in one.samples])}")


def _show_warnings(statuses: Sequence[Status], all_of_them: Sequence[str]) -> None:
    """Of runs that still go on, and of those that were asked for."""
    for one in statuses:
        for warning in one.warnings if one.active or all_of_them else ():
            what = f"{warning['severity']} on {warning['host']}: {warning['message']} [{warning['check']}]"
            print(f"{one.run_id}: {what}")


def _show_bad_nodes(runs_dir: Path) -> None:
    for node in bad_nodes(runs_dir):
        until = datetime.fromtimestamp(node.until)
        print(f"{node.host} is avoided until {until:%b %d %H:%M}: {node.cause.replace('_', ' ')} of run {node.run_id}")


def _chosen(texts: Sequence[str], runs_dir: Path) -> Iterator[Row]:
    for text in texts:
        sweep = sweepdir.find(runs_dir, text)
        if sweep is None:
            yield from map(Row, statuses_of([rundir.find(runs_dir, text)]))
        else:
            yield from rows_of(sweep)


def _all(runs_dir: Path) -> Iterator[Row]:
    """Runs, and sweeps in one line each, the oldest first."""
    runs = statuses_of(rundir.all_runs(runs_dir))
    sweeps = [summary(sweep, [row.status for row in rows_of(sweep)]) for sweep in sweepdir.all_sweeps(runs_dir)]
    yield from map(Row, sorted([*runs, *sweeps], key=lambda one: one.run_id))


def rows_of(sweep: SweepDir) -> list[Row]:
    """The runs of a sweep, in its order, with the overrides that not all of them have."""
    overrides = sweep.overrides()
    common = set[str].intersection(*map(set, overrides.values())) if len(overrides) > 1 else set[str]()
    statuses = statuses_of([RunDir(path) for path in sweep.run_paths()])
    metric = sweep.read().get("sweep", {}).get("metric", "return_mean")
    return [
        Row(one, " ".join(word for word in words if word not in common), _metric(one, metric))
        for one, words in zip(statuses, overrides.values())
    ]


def _metric(one: Status, name: str) -> str:
    value = one.metrics.get(name)
    return "" if name == "return_mean" or not isinstance(value, (int, float)) else f"{name} {value:.4g}"


_WORST_FIRST = (RUNNING, PENDING, UNKNOWN, LOST, FAILED, STOPPED, COMPLETED)


def summary(sweep: SweepDir, statuses: Sequence[Status]) -> Status:
    """A sweep as one line: running while one of its runs is, failed when one has, completed when all have."""
    counts = Counter(one.state for one in statuses)
    state = next((state for state in _WORST_FIRST if counts[state]), UNKNOWN)
    jobs = [str(batch.submitted().get("job_id") or batch.submitted().get("host")) for batch in sweep.batches()]
    return Status(
        run_id=sweep.sweep_id,
        run_dir=str(sweep.path),
        state=state,
        message="",
        detail=f"{len(statuses)} runs: " + ", ".join(f"{counts[one]} {one}" for one in _WORST_FIRST if counts[one]),
        where=",".join(dict.fromkeys(jobs)),
        nodes="",
        iteration=None,
        max_iterations=None,
        return_mean=None,
        fps=None,
        attempts=0,
    )


_LONGEST_CAUSE = 72


def _cause(one: Status) -> str:
    text = f"{one.detail}: {one.message}" if one.message else one.detail
    return text if len(text) <= _LONGEST_CAUSE else f"{text[: _LONGEST_CAUSE - 1]}…"


_HEADINGS = (
    "RUN", "OVERRIDES", "STATE", "CAUSE", "ITERATION", "RETURN", "METRIC", "FRAMES/S", *load.SHORT,
    "JOB", "NODES", "TRY",
)  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    one = row.status
    progress = "" if one.iteration is None else f"{one.iteration}/{one.max_iterations}"
    return (
        one.run_id,
        row.overrides,
        one.state,
        _cause(one),
        progress,
        "" if one.return_mean is None else f"{one.return_mean:.1f}",
        row.metric,
        "" if one.fps is None else f"{one.fps:,.0f}",
        *load.short_cells(one.samples),
        one.where,
        one.nodes,
        str(one.attempts or ""),
    )
