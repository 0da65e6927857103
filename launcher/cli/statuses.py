"""The state of runs, with what Slurm says of their jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import SchedulerError
from launcher.records.heard import heard, remember
from launcher.records.rundir import RunDir
from launcher.records.status import Status, status_of
from launcher.records.submission import adopt, submitted, unrecorded
from launcher.slurm import commands
from launcher.slurm.queue import Job

_POLL_S = 5.0
_LONGEST_POLL_S = 120.0
_SHARE = 20
"""A controller that takes a second to answer is asked every 20 s at most."""


def statuses_of(runs: Sequence[RunDir]) -> list[Status]:
    """The status of each run; Slurm is asked once for all of them that have no verdict."""
    return Overview().look(runs)


@dataclass
class Overview:
    """Looks at runs again and again, and asks Slurm now and then: the less often, the slower it answers."""

    failure: str = ""
    """Why Slurm's last answer is missing; empty where it came."""
    asked_at: float = 0.0
    """Of the last question, seconds since the epoch; 0 before the first."""
    _jobs: Mapping[str, Job] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    _failures: int = 0
    _wait_s: float = 0.0
    _adopted: set[Path] = field(default_factory=set)

    @property
    def next_at(self) -> float:
        """When Slurm is to be asked again, seconds since the epoch."""
        return self.asked_at + self._wait_s

    def look(self, runs: Sequence[RunDir]) -> list[Status]:
        """The status of each run. What Slurm cannot say now is what it said before, and is marked by its time."""
        self._adopt(runs)
        ids = {run.path: _job_id(run) for run in runs}
        wanted = {ids[run.path]: run.runs_dir for run in runs if ids[run.path] and not _closed(run)}
        if wanted and (time.time() >= self.next_at or not wanted.keys() <= self._asked):
            self._ask(wanted)
        return [status_of(run, self._known(ids[run.path])) for run in runs]

    def _known(self, job_id: str) -> Mapping[str, Job] | None:
        """None of a job of which Slurm could not be asked, and has said nothing before."""
        return None if self.failure and job_id not in self._jobs else self._jobs

    def _ask(self, wanted: Mapping[str, Path]) -> None:
        before = {directory: heard(directory) for directory in set(wanted.values())}
        said = {job_id: job for jobs in before.values() for job_id, job in jobs.items() if job_id in wanted}
        ends = {job_id: job for job_id, job in said.items() if job.ended}
        began = time.monotonic()
        try:
            self._jobs = commands.with_reasons(commands.jobs(list(wanted), ends, commands.LOOK_S))
        except SchedulerError as error:
            self._jobs = said | commands.ended_jobs([job_id for job_id in wanted if job_id not in ends])
            self.failure, self._failures = str(error), self._failures + 1
        else:
            self.failure, self._failures = "", 0
            for directory, known in before.items():
                remember(directory, known, {one: job for one, job in self._jobs.items() if wanted[one] == directory})
        self._asked, self.asked_at = set(wanted), time.time()
        pause = max(_POLL_S, _SHARE * (time.monotonic() - began)) * 2**self._failures
        self._wait_s = min(_LONGEST_POLL_S, pause)

    def _adopt(self, runs: Iterable[RunDir]) -> None:
        """A command that was killed while it submitted may have left jobs that no record names."""
        nameless = [run for run in runs if run.path not in self._adopted and unrecorded(run)]
        self._adopted |= {run.path for run in nameless}
        if nameless and commands.missing_command() is None:
            with contextlib.suppress(SchedulerError):
                adopt(nameless, commands.my_scripts())


def _job_id(run: RunDir) -> str:
    return str(submitted(run).get("job_id", ""))


def _closed(run: RunDir) -> bool:
    """A verdict can be taken back by a requeue, but not for ever: Slurm need not be asked about old runs."""
    try:
        return time.time() - run.result.stat().st_mtime > 24 * 3600
    except OSError:
        return False
