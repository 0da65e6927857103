"""Which runs may go, and how they go: never half, and never one that somebody still needs."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.records import checkpoints, rundir, sweepdir
from launcher.records.columns import is_number
from launcher.records.files import read_json, write_json
from launcher.records.result import COMPLETED, read_result
from launcher.records.rundir import RunDir
from launcher.records.status import PENDING, UNKNOWN, Status
from launcher.records.submission import submitted
from launcher.records.sweepdir import SweepDir

_GONE = ".removed"


@dataclass(frozen=True)
class Removal:
    """A run, or a sweep as far as it goes."""

    runs: tuple[RunDir, ...]
    sweep: SweepDir | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing of the sweep is left, or it is a run by itself."""
        return self.sweep is None or {run.path for run in self.runs} == set(self.sweep.run_paths())

    @property
    def paths(self) -> list[Path]:
        """The directories that go."""
        if self.sweep is not None and self.whole:
            return [self.sweep.path]
        return [run.path for run in self.runs]

    @property
    def name(self) -> str:
        if self.sweep is None:
            return self.runs[0].run_id
        of = "" if self.whole else f"{len(self.runs)} of {len(self.sweep.run_paths())} runs of "
        return f"{of}sweep {self.sweep.sweep_id}"


def why_not_ours(path: Path) -> str:
    """Why a directory is not taken for a run or a sweep of ours, in words; empty where it is one."""
    run = path / "plan.json"
    if not run.exists():
        runs = (read_json(path / "sweep.json") or {}).get("runs")
        return "" if isinstance(runs, dict) and not path.is_symlink() else "it has no record of a sweep's runs"
    if (read_json(run) or {}).get("run_id") != path.name:
        return "its plan.json does not name this directory"
    if path.is_symlink() or not (path / "secret").is_file():
        return "it lacks what every run has"
    return "" if path.stat().st_uid == os.getuid() else "it belongs to somebody else"


def why_not_over(status: Status) -> str:
    """Why a run may still be running, in words; empty where it has ended, or was never submitted."""
    submission = submitted(RunDir(Path(status.run_dir)))
    if status.state == PENDING and submission.get("scheduler") == "none":
        return ""  # its commands find no run any more, and say so
    if status.active:
        return f"it is {status.state}"
    unsure = status.state == UNKNOWN and bool(submission)
    return f"nobody knows whether it runs ({status.detail})" if unsure else ""


def resumed_from(run: RunDir, others: Iterable[RunDir]) -> RunDir | None:
    """A run that needs a checkpoint of this one: it starts from it, and has neither completed nor one of its own."""
    path = run.path.resolve()  # runs_dir may be reached by a link
    for other in others:
        resume = (read_json(other.plan) or {}).get("resume") or ""
        if resume and path in Path(resume).resolve().parents and other.path.resolve() != path and _needs(other):
            return other
    return None


def _needs(run: RunDir) -> bool:
    result = read_result(run.result)
    return not (result is not None and result.outcome == COMPLETED) and not checkpoints.list_sealed(run.checkpoints)


def everything(runs_dir: Path) -> list[RunDir]:
    """All runs, those of sweeps among them."""
    of_sweeps = (RunDir(path) for sweep in sweepdir.all_sweeps(runs_dir) for path in sweep.run_paths())
    return [*rundir.all_runs(runs_dir), *of_sweeps]


def groups(runs_dir: Path) -> list[Removal]:
    """What goes together: each sweep, and each run that is in none."""
    sweeps = [
        Removal(tuple(map(RunDir, sweep.run_paths())), sweep)
        for sweep in sweepdir.all_sweeps(runs_dir)
        if sweep.run_paths()
    ]
    return [*(Removal((run,)) for run in rundir.all_runs(runs_dir)), *sweeps]


def last_change(run: RunDir) -> float:
    """When anything was last written down of a run, seconds since the epoch."""
    changed = 0.0
    for path in (run.plan, run.submission, run.metrics, run.result):
        with contextlib.suppress(OSError):
            changed = max(changed, path.stat().st_mtime)
    return changed


def best_runs(runs_dir: Path) -> set[Path]:
    """The best run of each sweep by its metric, and of each task and library by what ``checkpoint.best`` names."""
    best: dict[Any, tuple[float, Path]] = {}
    for removal in groups(runs_dir):
        for run in removal.runs:
            group, value = _group_and_value(run, removal.sweep)
            if value > best.get(group, (-math.inf, run.path))[0]:
                best[group] = (value, run.path)
    return {path for _, path in best.values()}


def _group_and_value(run: RunDir, sweep: SweepDir | None) -> tuple[Any, float]:
    result = read_result(run.result)
    training: Mapping[str, Any] = (read_json(run.plan) or {}).get("training") or {}
    metric = (training.get("checkpoint") or {}).get("best") or "return_mean"
    group: Any = (training.get("task", {}).get("name"), training.get("library"))
    if sweep is not None:
        metric, group = sweep.read().get("sweep", {}).get("metric", metric), sweep.sweep_id
    value = result.metrics.get(metric.removeprefix("-")) if result else None
    if not is_number(value) or not math.isfinite(value):
        return group, -math.inf
    return group, -value if metric.startswith("-") else value


def size_of(paths: Sequence[Path]) -> int:
    """Bytes on the disk, as ``du`` counts them, but files with several names once for each."""
    return sum(_blocks(path) for path in paths)


def _blocks(path: Path) -> int:
    total = 0
    for directory, _, files in os.walk(path):
        for name in (".", *files):
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return total


def remove(removal: Removal) -> None:
    """Remove runs from the disk. Readers see each of them whole or not at all, whenever this is interrupted.

    Raises:
        OSError: something cannot be removed.
    """
    paths = removal.paths
    if removal.sweep is not None and not removal.whole:
        record, gone = removal.sweep.read(), {run.run_id for run in removal.runs}
        kept = {run_id: words for run_id, words in removal.sweep.overrides().items() if run_id not in gone}
        write_json(removal.sweep.record, {**record, "runs": kept})
    for path in paths:
        hidden = path.with_name(f".{path.name}{_GONE}")
        os.rename(path, hidden)
        _finish(hidden)


def finish_interrupted(runs_dir: Path) -> None:
    """Remove what is left of removals that were cut off."""
    for pattern in (f".*{_GONE}", f"*/.*{_GONE}"):
        for path in runs_dir.glob(pattern):
            with contextlib.suppress(OSError):
                _finish(path)


def _finish(hidden: Path) -> None:
    for name in ("plan.json", "sweep.json"):  # what it is known by
        (hidden / name).unlink(missing_ok=True)
    shutil.rmtree(hidden)


def needed_by(removals: Sequence[Removal], runs_dir: Path) -> Iterator[tuple[Removal, RunDir]]:
    """Those of which a run that stays needs a checkpoint, with that run."""
    going = {run.path.resolve() for removal in removals for run in removal.runs}
    staying = [run for run in everything(runs_dir) if run.path.resolve() not in going]
    for removal in removals:
        needed = (resumed_from(run, staying) for run in removal.runs)
        if (other := next(filter(None, needed), None)) is not None:
            yield removal, other
