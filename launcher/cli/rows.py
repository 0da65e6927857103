"""Which runs a table shows: those that are asked for, or all, a sweep in a line or run by run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.cli.statuses import Overview
from launcher.records import rundir, sweepdir
from launcher.records.columns import is_number
from launcher.records.notes import Note, notes_in
from launcher.records.result import COMPLETED, FAILED, STOPPED
from launcher.records.rundir import RunDir
from launcher.records.status import LOST, PENDING, RUNNING, UNKNOWN, Status
from launcher.records.sweepdir import SweepDir

WORST_FIRST = (RUNNING, PENDING, UNKNOWN, LOST, FAILED, STOPPED, COMPLETED)


@dataclass(frozen=True)
class Row:
    """A line of the table: a run, or a sweep as a whole."""

    status: Status
    overrides: str = ""
    """What tells a run of a sweep from the others."""
    metric: str = ""
    """The sweep's metric, where that is another one than the return."""


@dataclass(frozen=True)
class Choice:
    """Which runs are wanted."""

    runs_dir: Path
    runs: Sequence[str] = ()
    """Runs and sweeps as a person names them; none: all there are."""
    failed: bool = False
    """Only those that failed or were lost."""
    since_s: float | None = None
    """Only those that go on, or changed within so many seconds."""

    def rows(self, overview: Overview, now: float) -> list[Row]:
        """The rows, in the order of the names, else the oldest first. Slurm is asked about all of them together.

        Raises:
            UserError: what is named is not there.
        """
        parts = list(map(self._named, self.runs)) if self.runs else self._all()
        statuses = overview.look([run for part in parts for run in part.runs])
        by_path = {Path(one.run_dir): one for one in statuses}
        rows = [row for part in parts for row in part.rows(by_path)]
        kept = [row for row in rows if self._wanted(row.status, now)]
        return kept if self.runs else sorted(kept, key=lambda row: row.status.run_id)

    def notes(self, rows: Sequence[Row]) -> list[tuple[str, Note]]:
        """The remarks on what is named, and on the runs of these rows among it, with the id of what they are on."""
        sweeps = filter(None, (sweepdir.find(self.runs_dir, text) for text in self.runs))
        of_sweeps = [(sweep.sweep_id, note) for sweep in sweeps for note in notes_in(sweep.path)]
        of_runs = [(row.status.run_id, Note(**note)) for row in rows if self.runs for note in row.status.notes]
        return [*of_sweeps, *of_runs]

    def _wanted(self, one: Status, now: float) -> bool:
        recent = self.since_s is None or one.active or one.changed_at >= now - self.since_s
        return recent and (not self.failed or one.state in (FAILED, LOST))

    def _named(self, text: str) -> _Part:
        sweep = sweepdir.find(self.runs_dir, text)
        return _Part([rundir.find(self.runs_dir, text)]) if sweep is None else _of_sweep(sweep)

    def _all(self) -> list[_Part]:
        """Sweeps in one line each, unless only some of their runs are wanted."""
        rundir.require_readable(self.runs_dir)
        sweeps = map(_of_sweep, sweepdir.all_sweeps(self.runs_dir))
        return [_Part(rundir.all_runs(self.runs_dir)), *(_Part(one.runs, one.sweep, not self.failed) for one in sweeps)]


@dataclass(frozen=True)
class _Part:
    """Some runs, or the runs of a sweep."""

    runs: Sequence[RunDir]
    sweep: SweepDir | None = None
    whole: bool = False
    """In one line."""

    def rows(self, statuses: Mapping[Path, Status]) -> Iterable[Row]:
        found = [statuses[run.path] for run in self.runs]
        if self.sweep is None:
            return map(Row, found)
        return [Row(summary(self.sweep, found))] if self.whole else _rows(self.sweep, found)


def _of_sweep(sweep: SweepDir) -> _Part:
    return _Part([RunDir(path) for path in sweep.run_paths()], sweep)


def rows_of(sweep: SweepDir) -> list[Row]:
    """The runs of a sweep, in its order, with the overrides that not all of them have."""
    return _rows(sweep, Overview().look(_of_sweep(sweep).runs))


def _rows(sweep: SweepDir, statuses: Sequence[Status]) -> list[Row]:
    overrides = sweep.overrides()
    common = set[str].intersection(*map(set, overrides.values())) if len(overrides) > 1 else set[str]()
    metric = sweep.read().get("sweep", {}).get("metric", "return_mean")
    return [
        Row(one, " ".join(word for word in words if word not in common), _metric(one, metric))
        for one, words in zip(statuses, overrides.values())
    ]


def _metric(one: Status, name: str) -> str:
    value = one.metrics.get(name)
    return f"{name} {value:.4g}" if name != "return_mean" and is_number(value) else ""


def summary(sweep: SweepDir, statuses: Sequence[Status]) -> Status:
    """A sweep as one line: running while one of its runs is, failed when one has, completed when all have."""
    counts = Counter(one.state for one in statuses)
    state = next((state for state in WORST_FIRST if counts[state]), UNKNOWN)
    jobs = [str(batch.submitted().get("job_id") or batch.submitted().get("host")) for batch in sweep.batches()]
    said = [one.as_of for one in statuses if one.as_of is not None]
    return Status(
        run_id=sweep.sweep_id,
        run_dir=str(sweep.path),
        state=state,
        message="",
        detail=f"{len(statuses)} runs: {', '.join(_parts(statuses, counts))}",
        where=",".join(dict.fromkeys(jobs)),
        nodes="",
        iteration=None,
        max_iterations=None,
        return_mean=None,
        fps=None,
        attempts=0,
        never=any(one.never for one in statuses),
        as_of=min(said, default=None),
        changed_at=max((one.changed_at for one in statuses), default=0.0),
        notes=[asdict(note) for note in notes_in(sweep.path)],
    )


def _parts(statuses: Sequence[Status], counts: Mapping[str, int]) -> list[str]:
    held, never = sum(bool(one.release) for one in statuses), sum(one.never for one in statuses)
    more = [f"{held} held" if held else "", f"{never} can never start" if never else ""]
    return [*(f"{counts[state]} {state}" for state in WORST_FIRST if counts[state]), *filter(None, more)]
