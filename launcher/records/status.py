"""What is known of a run at this moment, from its records and from what Slurm says of its job."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.records.files import last_json_line, read_json, tail
from launcher.records.result import COMPLETED, FAILED, STOPPED, read_result
from launcher.records.rundir import RunDir
from launcher.records.samples import newest_samples, warnings_of
from launcher.records.submission import submitted
from launcher.slurm.queue import Job

PENDING, RUNNING, LOST, UNKNOWN = "pending", "running", "lost", "unknown"
"""Beside the three outcomes. Lost: it no longer runs, and left no verdict."""


@dataclass(frozen=True)
class Status:
    """A run, for a table or for a program."""

    run_id: str
    run_dir: str
    state: str
    detail: str
    """The cause of an end, the reason of a wait."""
    message: str
    """What happened, in words: the last line of a traceback, of a batch script that failed."""
    where: str
    """The job's id, or the machine of a local run."""
    nodes: str
    iteration: int | None
    max_iterations: int | None
    return_mean: float | None
    fps: float | None
    attempts: int
    metrics: dict[str, Any] = field(default_factory=dict)
    """All that the newest line of metrics.jsonl says."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """While it runs: the newest sample of each node, with ``host``, ``age_s`` and ``stale``."""
    warnings: list[dict[str, str]] = field(default_factory=list)
    """What was found to be silently wrong in the newest attempt (docs/diagnosis.md)."""

    @property
    def active(self) -> bool:
        return self.state in (PENDING, RUNNING)


def status_of(run: RunDir, jobs: Mapping[str, Job] | None) -> Status:
    """The status of a run; `jobs` is what Slurm knows, by job id, or None where it cannot be asked."""
    submission, plan = submitted(run), read_json(run.plan) or {}
    state, detail = _state(run, submission, jobs)
    result = read_result(run.result)
    metrics = last_json_line(run.metrics) or {}
    job = (jobs or {}).get(str(submission.get("job_id")))
    attempts = run.attempts()
    newest = attempts[-1] if attempts and state == RUNNING else None
    return Status(
        run_id=run.run_id,
        run_dir=str(run.path),
        state=state,
        detail=detail,
        message=result.message if result else last_words(run) if state in (FAILED, LOST) else "",
        where=str(submission.get("job_id") or submission.get("host") or ""),
        nodes=_nodes(run) or (job.nodes if job else ""),
        iteration=metrics.get("iteration"),
        max_iterations=plan.get("training", {}).get("max_iterations") if metrics else None,
        return_mean=metrics.get("return_mean"),
        fps=metrics.get("fps"),
        attempts=len(attempts),
        metrics=metrics,
        samples=newest_samples(newest, plan.get("budgets", {}).get("sample_s", 0.0), time.time()) if newest else [],
        warnings=warnings_of(newest) if newest else result.warnings if result else [],
    )


def _state(run: RunDir, submission: Mapping[str, Any], jobs: Mapping[str, Job] | None) -> tuple[str, str]:
    """Until the job has ended Slurm may requeue it: of the verdicts only that on a completed run is the last one."""
    job = (jobs or {}).get(str(submission.get("job_id")))
    result = read_result(run.result)
    if job is not None and job.queued:
        before = _last_cause(run)
        return PENDING, ", ".join(filter(None, [job.reason, before and f"goes on after {before}"]))
    completed = result is not None and result.outcome == COMPLETED
    if job is not None and not job.ended and not completed:
        return RUNNING, "" if job.state == "RUNNING" else job.state.lower()
    if result is not None:
        return result.outcome, result.cause
    if submission.get("scheduler") in ("local", "none"):
        return _state_of_agent(run, submission)
    if not submission:
        return UNKNOWN, "not submitted"
    if jobs is None:
        return UNKNOWN, "Slurm cannot be asked"
    if job is not None and job.state == "CANCELLED" and not run.attempts():
        return STOPPED, "cancelled before it started"
    if job is not None and job.state == "CANCELLED" and (before := _last_cause(run)):
        return STOPPED, f"cancelled while it waited to go on after {before}"
    if job is not None and job.state == "FAILED" and not run.attempts():
        return FAILED, "setup"
    return LOST, f"the job ended as {job.state}" if job else "Slurm no longer knows the job"


def _last_cause(run: RunDir) -> str:
    """Of a run that goes on: what ended its last attempt, in words; empty while none has ended, or one is running."""
    attempts = run.attempts()
    verdict = read_result(attempts[-1].verdict) if attempts else None
    return verdict.cause.replace("_", " ") if verdict else ""


def last_words(run: RunDir) -> str:
    """The last line that the agents or the batch script of a run printed: why a job ended before any rank started."""
    printed = [run.agent_log, *sorted(run.slurm.glob("*_log.out")), *sorted(run.slurm.glob("*batch.out"))]
    lines = (tail(path, 4096).decode(errors="replace").split("\n") for path in printed)
    return next((line.strip() for text in lines for line in reversed(text) if _says_why(line)), "")


def _says_why(line: str) -> bool:
    """False for blank lines, and for srun's own account of the end, which names no reason."""
    return bool(line.strip()) and not line.startswith(("srun: ", "slurmstepd: "))


def _state_of_agent(run: RunDir, submission: Mapping[str, Any]) -> tuple[str, str]:
    """Without Slurm only the machine of the (first) agent knows whether it lives."""
    if "pid" not in submission:
        return PENDING, f"nobody has started it on {submission['hosts'][0]}"
    if submission["host"] != os.uname().nodename:
        return UNKNOWN, f"started on {submission['host']}: ask there"
    pid = int(submission["pid"])
    if "queue" in submission:
        return (PENDING, "waits for its turn") if agent_alive(submission["queue"], pid) else (UNKNOWN, "not started")
    return (RUNNING, "") if agent_alive(str(run.path), pid) else (LOST, "its agent died")


def agent_alive(records: str, pid: int) -> bool:
    """True when the process is the agent of this run or batch, and not a later one with the same number."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"launcher.node" in words and records.encode() in words


def _nodes(run: RunDir) -> str:
    attempts = run.attempts()
    record = read_json(attempts[-1].rendezvous) if attempts else None
    return ",".join(record["hosts"]) if record else ""
