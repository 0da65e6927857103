"""What is known of a run at this moment, from its records and from what Slurm says of its job."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launcher.records.files import last_json_line, read_json, tail
from launcher.records.notes import notes_in
from launcher.records.result import COMPLETED, FAILED, STOPPED, Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.records.samples import newest_samples, warnings_and_suspicion
from launcher.records.submission import shared, submitted
from launcher.slurm.queue import Job
from launcher.slurm.reasons import HELD, NEVER, WAITS, wait_of

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
    slurm_state: str = ""
    """Slurm's word for the state of the job; empty where Slurm says nothing of it."""
    slurm_reason: str = ""
    """Slurm's word for why the job is pending."""
    starts_at: float | None = None
    """Of a pending job: when Slurm expects it to start, seconds since the epoch."""
    never: bool = False
    """The pending job cannot start as things are."""
    release: str = ""
    """Of a held job: the command that lets it start."""
    time_left_s: int | None = None
    """Of a running job: seconds until its time limit."""
    as_of: float | None = None
    """When Slurm said so, seconds since the epoch, where it cannot be asked now; None of an answer of this moment."""
    changed_at: float = 0.0
    """When something was last written of the run, seconds since the epoch."""
    notes: list[dict[str, Any]] = field(default_factory=list)
    """What people have remarked, the oldest first: ``time`` (seconds since the epoch), ``user``, ``text``."""

    @property
    def active(self) -> bool:
        return self.state in (PENDING, RUNNING)


def status_of(run: RunDir, jobs: Mapping[str, Job] | None) -> Status:
    """The status of a run; `jobs` is what Slurm knows, by job id, or None where it cannot be asked."""
    submission, plan, result = submitted(run), read_json(run.plan) or {}, read_result(run.result)
    attempts, job_id, now = run.attempts(), str(submission.get("job_id", "")), time.time()
    job = (jobs or {}).get(job_id)
    state, detail = _state(_Known(run, submission, attempts, result, job, jobs is not None, now))
    metrics = last_json_line(run.metrics) or {}
    newest = attempts[-1] if attempts and state == RUNNING else None
    warnings, suspicion = warnings_and_suspicion(newest) if newest else (result.warnings if result else [], "")
    return Status(
        run_id=run.run_id,
        run_dir=str(run.path),
        state=state,
        detail=detail or suspicion,
        message=result.message if result else last_words(run) if state in (FAILED, LOST) else "",
        where=job_id or str(submission.get("host") or ""),
        nodes=_nodes(attempts) or (job.nodes if job else ""),
        iteration=metrics.get("iteration"),
        max_iterations=_total(plan) if metrics else None,
        return_mean=metrics.get("return_mean"),
        fps=metrics.get("fps"),
        attempts=len(attempts),
        metrics=metrics,
        samples=newest_samples(newest, (plan.get("budgets") or {}).get("sample_s") or 0.0, now) if newest else [],
        warnings=warnings,
        changed_at=changed_at(run),
        notes=[asdict(note) for note in notes_in(run.path)],
        **(_of_job(job, job_id, state, now) if job else {}),
    )


def _total(plan: Mapping[str, Any]) -> int | None:
    """How many iterations there are to be; a script has its own idea of that."""
    training = plan.get("training") or {}
    return training.get("max_iterations") if training.get("task", {}).get("env") else None


def changed_at(run: RunDir) -> float:
    """When something was last written of a run, seconds since the epoch."""
    times = (_written(path) for path in (run.plan, run.submission, run.metrics, run.result, run.path / "attempts"))
    return max(times)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _of_job(job: Job, job_id: str, state: str, now: float) -> dict[str, Any]:
    """What Slurm adds to the records of a run."""
    wait = wait_of(job) if job.queued else None
    held, running = wait is not None and wait.kind == HELD, state == RUNNING and job.active
    left_s = None if job.left_s is None or not running else round(job.left_s - (now - (job.as_of or now)))
    return {
        "slurm_state": job.state,
        "slurm_reason": job.reason if wait else "",
        "starts_at": job.starts_at if wait and wait.kind == WAITS and (job.starts_at or 0.0) > now else None,
        "never": wait is not None and wait.kind == NEVER,
        "release": f"scontrol release {job_id}" if held else "",
        "time_left_s": left_s,
        "as_of": job.as_of if not job.ended and state in (PENDING, RUNNING) else None,
    }


@dataclass(frozen=True)
class _Known:
    """All that tells the state of a run."""

    run: RunDir
    submission: Mapping[str, Any]
    attempts: Sequence[Attempt]
    result: Result | None
    job: Job | None
    asked: bool
    """Slurm could be asked, now or before."""
    now: float


def _state(known: _Known) -> tuple[str, str]:
    """Until the job has ended Slurm may requeue it: of the verdicts only that on a completed run is the last one, and
    that on one of several runs of a job, which leaves it out when it starts again."""
    result = known.result
    job = None if known.job is None or known.job.ended or _left_behind(known) else known.job
    if job is not None and job.queued:
        before = _last_cause(known.attempts)
        words = [_why_it_waits(job), before and f"goes on after {before}", _left_out(known.run)]
        return PENDING, ", ".join(filter(None, words))
    if job is not None and (result is None or result.outcome != COMPLETED):
        return RUNNING, "" if job.state == "RUNNING" else f"Slurm says {job.state}"
    if result is not None:
        return result.outcome, result.cause
    if known.submission.get("scheduler") in ("local", "none"):
        return _state_of_agent(known.run, known.submission)
    return _without_verdict(known)


def _left_behind(known: _Known) -> bool:
    """It has ended, and its job goes on with others."""
    return known.result is not None and shared(known.run)


def _left_out(run: RunDir) -> str:
    return "cancelled: its turn will not come" if run.cancelled else ""


def _why_it_waits(job: Job) -> str:
    """In words, with Slurm's own word behind them: ``waits for free nodes (Resources)``."""
    wait, word = wait_of(job), job.reason.partition(",")[0] or ("" if job.state == "PENDING" else job.state)
    words = f"never: {wait.words}" if wait.kind == NEVER else wait.words
    return f"{words} ({word})" if words and word and len(word) <= _LONGEST_WORD else words or word


_LONGEST_WORD = 40
"""One of Slurm's reasons is a sentence."""


def _without_verdict(known: _Known) -> tuple[str, str]:
    """Of a job of Slurm's that does not go on."""
    job, attempts = known.job, known.attempts
    if not known.submission:
        return UNKNOWN, "not submitted"
    if job is None and not known.asked:
        return UNKNOWN, "Slurm cannot be asked"
    if job is None:
        return LOST, "Slurm no longer knows the job"
    if job.nodes and job.ends_at is not None and abs(known.now - job.ends_at) < VERDICT_S:
        return RUNNING, f"its job has ended ({job.state}), the verdict has yet to be seen"
    if job.state == "CANCELLED" and not attempts:
        return STOPPED, "cancelled before it started"
    if job.state == "CANCELLED":
        before = _last_cause(attempts)
        return STOPPED, f"cancelled while it waited to go on after {before}" if before else "cancelled, with no verdict"
    if job.state == "FAILED" and not attempts:
        return FAILED, "setup"
    if job.gone and job.state not in _ENDS:
        return LOST, f"Slurm's queue no longer knows the job, its accounting has it as {job.state}"
    return LOST, f"{_ENDS.get(job.state, 'the job ended')} ({job.state}), with no verdict"


VERDICT_S = 20.0
"""How long a verdict may take to be seen after the job's end: shared file systems show files late."""
_ENDS = {
    "COMPLETED": "the job ended",
    "FAILED": "the job failed",
    "CANCELLED": "cancelled",
    "TIMEOUT": "ended at its time limit",
    "NODE_FAIL": "a node failed",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out of memory",
    "BOOT_FAIL": "a node did not boot",
    "DEADLINE": "ended at its deadline",
    "REVOKED": "another cluster took the job",
}
"""Slurm's words for the end of a job."""


def _last_cause(attempts: Sequence[Attempt]) -> str:
    """Of a run that goes on: what ended its last attempt, in words; empty while none has ended, or one is running."""
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
    if (pid := submission.get("pid")) is None:
        hosts = submission.get("hosts")
        return (PENDING, f"nobody has started it on {hosts[0]}") if hosts else (UNKNOWN, _DAMAGED)
    if (host := submission.get("host", "")) != os.uname().nodename:
        return UNKNOWN, f"started on {host}: ask there" if host else _DAMAGED
    if "queue" in submission:
        turn = _left_out(run) or "waits for its turn"
        return (PENDING, turn) if agent_alive(submission["queue"], pid) else (UNKNOWN, "not started")
    return (RUNNING, "") if agent_alive(str(run.path), pid) else (LOST, "its agent died")


_DAMAGED = "its submission.json is damaged"


def agent_alive(records: str, pid: int) -> bool:
    """True when the process is the agent of this run or batch, and not a later one with the same number."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    paths = {os.path.realpath(word) for word in words if word.startswith(b"/")}  # runs_dir may be reached by a link
    return b"launcher.node" in words and os.path.realpath(os.fsencode(records)) in paths


def _nodes(attempts: Sequence[Attempt]) -> str:
    record = read_json(attempts[-1].rendezvous) if attempts else None
    return ",".join((record or {}).get("hosts") or ())
