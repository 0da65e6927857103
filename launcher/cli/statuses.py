"""The state of runs, with what Slurm says of their jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from launcher.errors import SchedulerError
from launcher.records.rundir import RunDir
from launcher.records.status import Status, status_of
from launcher.records.submission import adopt, submitted, unrecorded
from launcher.slurm import commands
from launcher.slurm.queue import Job


def statuses_of(runs: Sequence[RunDir]) -> list[Status]:
    """The status of each run; Slurm is asked once for all of them that have no verdict."""
    _adopt([run for run in runs if unrecorded(run)])
    open_jobs = [str(submitted(run)["job_id"]) for run in runs if not _closed(run) and "job_id" in submitted(run)]
    jobs = _ask(open_jobs)
    return [status_of(run, jobs) for run in runs]


def _adopt(runs: list[RunDir]) -> None:
    """A command that was killed while it submitted may have left jobs that no record names."""
    if runs and commands.missing_command() is None:
        with contextlib.suppress(SchedulerError):
            adopt(runs, commands.my_scripts())


def _closed(run: RunDir) -> bool:
    """A verdict can be taken back by a requeue, but not for ever: Slurm need not be asked about old runs."""
    return run.result.exists() and time.time() - run.result.stat().st_mtime > 24 * 3600


def _ask(job_ids: list[str]) -> dict[str, Job] | None:
    try:
        return commands.jobs(job_ids)
    except SchedulerError:
        return None
