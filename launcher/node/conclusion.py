"""The end of an attempt: its verdict is written down, and what follows is set in motion. Blocks; for a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from launcher.errors import SchedulerError
from launcher.node import retry
from launcher.node.job import Job
from launcher.node.notice import tell
from launcher.node.retry import Chances, Next
from launcher.plan.plan import Plan
from launcher.records import nodes
from launcher.records.columns import is_number
from launcher.records.files import Record, last_json_line, read_json, read_json_lines
from launcher.records.result import STOPPED, Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.slurm.fate import Stop

_INSIST_S = 60.0
"""How long a file system may refuse to take a record."""
_CUT_OFF = "killed before its ranks had saved"


def conclude(
    plan: Plan, run: RunDir, attempt: Attempt, result: Result, job: Job | None, can_stay: bool, bad: Sequence[str] = ()
) -> tuple[Result, Next]:
    """Decide what follows an attempt, write that down, and bring it about.

    Args:
        plan: of the run.
        run: its records.
        attempt: the attempt that has ended.
        result: how it ended.
        job: the job of Slurm's that it is part of.
        can_stay: whether another attempt could start in this allocation.
        bad: the hosts that failed it.

    Returns:
        The verdict, in which stands what followed; and that.
    """
    result = _timed(run, result)
    repeatable = result.cause in retry.BUDGETS or result.cause == "requeued"
    chances = Chances(can_stay, job is not None, job is not None and repeatable and job.requeued())
    then = retry.decide(plan.retry, [*history(run, attempt), result], chances)
    insist(lambda: _remember(plan, run, bad, result))
    result = _write(attempt, result, then)
    dead = result.cause == "node_lost" and bool(bad)
    if job is not None and (told := tell_slurm(plan, run, job, then, dead)) != then:
        then = told
        result = _write(attempt, result, then)
    if then.what == retry.END:
        finish(plan, run, attempt, result)
    return result, then


def finish(plan: Plan, run: RunDir, attempt: Attempt, result: Result) -> None:
    """Write down that the run has ended, and of a benchmark what it has measured; tell those who want to know."""
    insist(lambda: result.write(run.result))
    run.cancel.unlink(missing_ok=True)
    if plan.training.get("bench"):
        from launcher.records.bundle import write_bundle

        insist(lambda: write_bundle(run, result))
    tell(plan, run, attempt, result)


def secure(plan: Plan, run: RunDir, attempt: Attempt, stop: Stop, job: Job) -> None:
    """Arrange at once what is to follow an attempt that Slurm is ending, if that is another one.

    The ranks may not be done with their iteration when SIGKILL comes, to the batch script, too; then nobody is left who
    could arrange it.
    """
    if not stop.ending or stop.cause not in ("preempted", "time_limit", "node_lost"):
        return
    iteration, resumed_at = progress_of(run, attempt)
    result = Result(STOPPED, stop.cause, iteration=iteration, resumed_at=resumed_at)
    insist(lambda: _remember(plan, run, stop.down, result))
    then = retry.decide(plan.retry, [*history(run, attempt), result], Chances(slurm=True, requeued=job.requeued()))
    if then.what == retry.LEFT_TO_SLURM or (then.what == retry.REQUEUE and stop.cause != "node_lost"):
        tell_slurm(plan, run, job, then)  # a node is Slurm's to miss, see Job.start_again


def cut_off(run: RunDir, attempt: Attempt) -> None:
    """Write down the end of a cancelled run, in whose last moments its ranks are still not done with saving.

    SIGKILL leaves nobody who could say it. Ranks that are done just then have the last word all the same.
    """
    if attempt.verdict.exists() or attempt.superseded:
        return
    iteration, resumed_at = progress_of(run, attempt)
    facts: dict[str, Any] = {"iteration": iteration, "resumed_at": resumed_at, "attempts": attempt.number + 1}
    result = Result(STOPPED, "cancelled", _CUT_OFF, seconds=lasted(attempt), **facts)
    result = _write(attempt, _timed(run, result), Next(retry.END))
    insist(lambda: result.write(run.result), seconds=0.0)


def lasted(attempt: Attempt) -> float:
    """Seconds from the start of an attempt to the last that it wrote, of one that could not say itself how long."""
    began = _began(attempt)
    wrote = [path.stat().st_mtime for path in attempt.path.iterdir()]
    return 0.0 if began is None else round(max(0.0, max(wrote, default=began) - began), 1)


def _timed(run: RunDir, result: Result) -> Result:
    """With the time since the run's first attempt began."""
    began = next((at for attempt in run.attempts() if (at := _began(attempt)) is not None), None)
    total = result.seconds if began is None else max(result.seconds, time.time() - began)
    return replace(result, total_seconds=round(total, 1))


def _began(attempt: Attempt) -> float | None:
    """When, in seconds since the epoch; None where a full disk kept even that from its records."""
    at = next(read_json_lines(attempt.events), {}).get("time")
    return at if is_number(at) else None


def progress_of(run: RunDir, attempt: Attempt) -> tuple[int | None, int]:
    """The iterations that were done at the end of an attempt, None where nothing tells, and at its start."""
    start = read_json(attempt.rendezvous) or {}
    resumed_at = int(start.get("resumed_at", 0))
    said, newest = read_json(attempt.training) or {}, last_json_line(run.metrics) or {}
    written = newest.get("time", 0)  # a script may write anything
    of_attempt = isinstance(written, (int, float)) and written >= start.get("time", 0)
    told = [said.get("iteration"), newest.get("iteration") if of_attempt else None]
    return max((number for number in told if isinstance(number, int)), default=resumed_at or None), resumed_at


def training_of(run: RunDir, attempt: Attempt) -> Record:
    """What is known of the training at the end of an attempt: what rank 0 said of it, and the newest line of metrics.

    Rank 0 speaks at checkpoints and at its end: one that is killed, or a script that only records its progress, does
    not.
    """
    iteration, resumed_at = progress_of(run, attempt)
    known = {**(read_json(attempt.training) or {}), "iteration": iteration, "resumed_at": resumed_at}
    newest = last_json_line(run.metrics) or {}
    if newest.get("iteration") == iteration is not None:
        numbers = {key: value for key, value in newest.items() if is_number(value)}
        known["metrics"] = {key: value for key, value in numbers.items() if key not in ("iteration", "time")}
    return known


def history(run: RunDir, before: Attempt) -> list[Result]:
    """How the attempts before one ended, since the last that ended the run: after that a person has started it."""
    found: list[Result] = []
    for attempt in run.attempts():
        if attempt.number < before.number and (verdict := read_result(attempt.verdict)) is not None:
            found = [] if verdict.then.startswith(retry.END) else [*found, verdict]
    return found


def insist(write: Callable[[], object], seconds: float = _INSIST_S) -> None:
    """Try to write until it works: a disk may be full, or a file system read-only, for a while only."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            write()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                print(f"[launcher] cannot be written: {error}", flush=True)
                return
            time.sleep(1.0)


def _write(attempt: Attempt, result: Result, then: Next) -> Result:
    """A person has to go on only with what does not do so by itself."""
    by_hand = then.what == retry.END and result.outcome == STOPPED and result.iteration
    hint = f"go on with: python -m launcher resume {attempt.run.run_id}" if by_hand else result.hint
    result = replace(result, then=then.words(), hint=hint)
    insist(lambda: result.write(attempt.verdict))
    return result


def _remember(plan: Plan, run: RunDir, bad: Sequence[str], result: Result) -> None:
    """A node that was remembered before, in this attempt, is so for a little longer."""
    if bad and plan.retry.avoid_node_s is not None:
        nodes.remember(run.runs_dir, bad, result.cause, run.run_id, plan.retry.avoid_node_s)


def tell_slurm(plan: Plan, run: RunDir, job: Job, then: Next, node_is_dead: bool = False) -> Next:
    """Have Slurm do what was decided; a requeue that it refuses is the end of the run."""
    avoided = [node.host for node in nodes.bad_nodes(run.runs_dir)]
    try:
        if then.what == retry.REQUEUE:
            job.start_again(plan, run, avoided, node_is_dead)
        elif then.what == retry.LEFT_TO_SLURM:
            job.avoid(plan, avoided)
        elif then.what == retry.END:
            job.end_for_good(unasked=bool(then.why))
    except SchedulerError as error:
        if then.what == retry.REQUEUE:
            return Next(retry.END, f"it could not be requeued: {error}")
    return then
