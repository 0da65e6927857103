"""The directory of a sweep: its runs, and the batches in which they were handed to Slurm or to this machine.

``runs/<sweep id>/`` holds ``sweep.json``, a directory per run, and ``batches/``. A batch is one Slurm array (or the
queue of this machine). What it runs is written before it is submitted, so that a crash in between loses no run.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from launcher.errors import UserError
from launcher.records.files import Record, read_json, write_json
from launcher.records.rundir import copy_package


@dataclass(frozen=True)
class Batch:
    """Runs that were started together."""

    path: Path
    """``batches/000``: the directory of sbatch's script and of what the agents print."""

    @property
    def tasks(self) -> Path:
        """For each index of the array the runs that it holds, one after the other or packed."""
        return self.path / "tasks.json"

    @property
    def submission(self) -> Path:
        """The array's job id, or the process on this machine; absent while nothing is known of it."""
        return self.path / "submission.json"

    def submitted(self) -> Record:
        return read_json(self.submission) or {}

    def forget(self) -> None:
        """Take back a batch that was refused: its runs count as never submitted."""
        shutil.rmtree(self.path)


@dataclass(frozen=True)
class SweepDir:
    """``runs/<sweep id>/``."""

    path: Path

    @property
    def sweep_id(self) -> str:
        return self.path.name

    @property
    def record(self) -> Path:
        """The overrides of each run, and how the runs are spread out."""
        return self.path / "sweep.json"

    @property
    def code(self) -> Path:
        """The nodes' launcher, for all runs."""
        return self.path / "code"

    @property
    def snapshot(self) -> Path:
        """The copy of the user's code, for all runs."""
        return self.path / "snapshot"

    @property
    def provenance(self) -> Path:
        """What the sweep was started with."""
        return self.path / "provenance.json"

    def run_path(self, number: int) -> Path:
        return self.path / f"{self.sweep_id}-{number:04}"

    def read(self) -> Record:
        """The sweep's record; empty while no run is written."""
        return read_json(self.record) or {}

    def overrides(self) -> dict[str, list[str]]:
        """Each run's overrides, by run id, in the order of the sweep."""
        return {str(run_id): list(words) for run_id, words in self.read().get("runs", {}).items()}

    def run_paths(self) -> list[Path]:
        return [self.path / run_id for run_id in self.overrides()]

    def batches(self) -> list[Batch]:
        """All batches, the oldest first."""
        return [Batch(path) for path in sorted((self.path / "batches").glob("[0-9]*"))]

    def new_batch(self, tasks: list[list[str]], slots: int | None = None) -> Batch:
        """Write down what a batch runs: a list of run ids per index, and how many of them may run at a time."""
        batch = Batch(self.path / "batches" / f"{len(self.batches()):03}")
        batch.path.mkdir(parents=True)
        write_json(batch.tasks, {"tasks": tasks, "slots": slots})
        return batch


def new_sweep_id(now: datetime) -> str:
    """``20261129-181502-sweep-3fa9``."""
    return f"{now:%Y%m%d-%H%M%S}-sweep-{secrets.token_hex(2)}"


def create(runs_dir: Path, sweep_id: str) -> SweepDir:
    """Make the directory of a new sweep, readable by its owner only.

    Raises:
        UserError: `runs_dir` cannot be written.
    """
    sweep = SweepDir(runs_dir / sweep_id)
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        os.mkdir(sweep.path, 0o700)
        copy_package(sweep.code)
    except OSError as error:
        raise UserError(
            f"cannot write runs_dir '{runs_dir}': {error.strerror}; choose another with runs_dir=DIR"
        ) from error
    return sweep


def all_sweeps(runs_dir: Path) -> list[SweepDir]:
    """The sweeps of a directory, the oldest first."""
    return [SweepDir(path.parent) for path in sorted(runs_dir.glob("*/sweep.json"))]


def find(runs_dir: Path, text: str) -> SweepDir | None:
    """The sweep that a person means by its id, a unique beginning of it, its directory, or its array's job id."""
    if os.path.isfile(Path(text) / "sweep.json"):
        return SweepDir(Path(text).resolve())
    sweeps = all_sweeps(runs_dir)
    exact = [sweep for sweep in sweeps if text and (text == sweep.sweep_id or text in _job_ids(sweep))]
    matches = exact or [sweep for sweep in sweeps if text and sweep.sweep_id.startswith(text)]
    return matches[0] if len(matches) == 1 else None


def _job_ids(sweep: SweepDir) -> list[str]:
    return [str(batch.submitted().get("job_id") or "") for batch in sweep.batches()]


def tasks_of(path: Path, index: int) -> tuple[list[Path], int | None]:
    """The directories of the runs that one index of a batch holds, and how many run at a time (None: all).

    Raises:
        ValueError: the file is no batch, or has no such index.
    """
    record = read_json(path)
    if record is None or not 0 <= index < len(record["tasks"]):
        raise ValueError(f"'{path}' holds no task {index}")
    return [path.parents[2] / run_id for run_id in record["tasks"][index]], record["slots"]
