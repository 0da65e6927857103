"""A new run, from its plan to Slurm's queue: what the command line and ``launcher.submit()`` have in common."""

from __future__ import annotations

import shutil
from pathlib import Path

from launcher.config.compose import Composed
from launcher.errors import SchedulerError
from launcher.plan.plan import Plan
from launcher.records.rundir import RunDir
from launcher.submission.prepare import require_packages, write_run
from launcher.submission.provenance import collect
from launcher.submission.slurm import require_slurm, submit


def new_run(plan: Plan, composed: Composed, snapshot_of: Path | None = None) -> RunDir:
    """Make the directory of a run that can be started; `snapshot_of` is another run's snapshot to copy.

    Raises:
        UserError: the library is not installed, or the directory cannot be written.
        SchedulerError: it is for Slurm, and there is none here.
    """
    require_packages(composed.config)
    if plan.scheduler == "slurm":
        require_slurm()
    return write_run(plan, composed, collect(plan), snapshot_of=snapshot_of)


def submit_new(plan: Plan, run: RunDir) -> str:
    """Submit a run that was just made; returns the job's id. Nothing is left of one that Slurm refuses.

    Raises:
        SchedulerError: Slurm refused, or cannot be reached.
    """
    try:
        return submit(plan, run)
    except SchedulerError:
        shutil.rmtree(run.path)
        raise
