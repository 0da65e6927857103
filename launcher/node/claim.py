"""One start of a run at a time: two jobs that write into the same records would spoil both."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from launcher.errors import LauncherError, SchedulerError
from launcher.node.place import Place
from launcher.records.files import create_json, write_json
from launcher.records.rundir import RunDir
from launcher.records.status import agent_alive
from launcher.records.submission import submitted
from launcher.slurm import commands


def claim(run: RunDir, place: Place) -> None:
    """Write down that this start has the run, unless an earlier one still goes on. For node 0.

    A rendered script may be submitted twice, a command pasted twice; the second start of a run that has ended is
    another attempt.

    Raises:
        LauncherError: another start still has the run.
    """
    ours = _record(place)
    if create_json(run.submission, ours):
        return
    theirs = submitted(run)
    if place.job_id is not None and theirs.get("job_id") == place.job_id:
        return  # submitted by us, or requeued
    if not run.result.exists() and _goes_on(run, theirs):
        who = f"job {theirs['job_id']}" if "job_id" in theirs else f"process {theirs['pid']} on {theirs['host']}"
        raise LauncherError(f"run {run.run_id} is already being trained by {who}: this start leaves it alone")
    write_json(run.submission, ours)


def _record(place: Place) -> dict[str, Any]:
    if place.job_id is not None:
        return {"scheduler": "slurm", "job_id": place.job_id, "time": time.time()}
    return {
        "scheduler": "none",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "hosts": list(place.hosts),
        "start": place.start_id,
        "time": time.time(),
    }


def _goes_on(run: RunDir, theirs: Mapping[str, Any]) -> bool:
    if "job_id" not in theirs:
        return (
            "pid" in theirs and theirs.get("host") == socket.gethostname() and agent_alive(str(run.path), theirs["pid"])
        )
    try:
        job = commands.jobs([theirs["job_id"]]).get(theirs["job_id"])
    except SchedulerError:
        return False
    return job is not None and job.active
