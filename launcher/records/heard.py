"""What Slurm last said of the jobs of these runs: the answer of a moment at which it cannot be asked.

Without accounting it is also what remains of how a job ended, once the queue has forgotten it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from launcher.records.files import read_json, write_json
from launcher.records.rundir import launchers_own
from launcher.slurm.queue import Job

_RECORD = "slurm_said.json"
_KEPT_S = 30 * 24 * 3600
_FRESH_S = 60.0
"""An answer that says nothing new is not written down again before."""


def heard(runs_dir: Path) -> dict[str, Job]:
    """By job id, each with the time (``as_of``) at which Slurm said so."""
    record = (read_json(launchers_own(runs_dir) / _RECORD) or {}).get("jobs")
    fields = Job.__dataclass_fields__.keys()
    if not isinstance(record, dict):
        return {}
    known = {job_id: job for job_id, job in record.items() if isinstance(job, dict) and job.keys() == fields}
    return {job_id: Job(**job) for job_id, job in known.items() if job["as_of"] is not None}


def remember(runs_dir: Path, before: Mapping[str, Job], jobs: Mapping[str, Job]) -> None:
    """Write down what Slurm has just said; `before` is what was known. No room to write is no reason to complain."""
    now = time.time()
    news = {job_id: replace(job, as_of=now) for job_id, job in jobs.items() if _is_news(before.get(job_id), job, now)}
    if not news:
        return
    kept = {job_id: job for job_id, job in before.items() if now - (job.as_of or 0.0) < _KEPT_S}
    with contextlib.suppress(OSError):
        record = launchers_own(runs_dir, make=True) / _RECORD
        write_json(record, {"jobs": {job_id: asdict(job) for job_id, job in (kept | news).items()}})


def _is_news(before: Job | None, job: Job, now: float) -> bool:
    if before is None or (before.state, before.reason, before.nodes) != (job.state, job.reason, job.nodes):
        return True
    return not job.ended and now - (before.as_of or 0.0) > _FRESH_S
