"""Attempts whose node 0 was cut off before it could say how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import SchedulerError
from launcher.node import retry
from launcher.node.conclusion import conclude, history, insist
from launcher.node.job import Job
from launcher.node.place import Place
from launcher.node.retry import Chances
from launcher.plan.plan import Plan
from launcher.records.files import last_json_line, read_json
from launcher.records.result import FAILED, Result
from launcher.records.rundir import Attempt, RunDir
from launcher.slurm import commands


def progress_of(run: RunDir, attempt: Attempt) -> tuple[int | None, int]:
    """The iterations that were done at the end of an attempt, None where nothing tells, and at its start."""
    start = read_json(attempt.rendezvous) or {}
    resumed_at = int(start.get("resumed_at", 0))
    said, newest = read_json(attempt.training) or {}, last_json_line(run.metrics) or {}
    told = [said.get("iteration"), newest.get("iteration") if newest.get("time", 0) >= start.get("time", 0) else None]
    return max((number for number in told if isinstance(number, int)), default=resumed_at or None), resumed_at


def judge_silent(plan: Plan, run: RunDir, attempt: Attempt, message: str) -> Result:
    """The verdict on an attempt that left none: its hosts are down, or it was killed."""
    hosts: Sequence[str] = (read_json(attempt.rendezvous) or {}).get("hosts", [])
    down = _down(hosts)
    iteration, resumed_at = progress_of(run, attempt)
    return Result(
        FAILED,
        "node_lost" if down else "killed",
        f"{', '.join(down)} went down" if down else message,
        host=(down or list(hosts) or [None])[0],
        iteration=iteration,
        resumed_at=resumed_at,
        world_size=plan.resources.world_size,
        attempts=attempt.number + 1,
    )


def _down(hosts: Sequence[str]) -> list[str]:
    try:
        return commands.down(hosts) if hosts else []
    except SchedulerError:
        return []


def settle_earlier(plan: Plan, run: RunDir, attempt: Attempt, place: Place) -> bool:
    """Judge the attempt before this one, if it left no verdict. Returns True where the run is not to go on after it.

    When Slurm has not requeued the job, a person has started the run again, and what happened before does not count.
    """
    silent = [one for one in run.attempts() if one.number == attempt.number - 1 and not one.verdict.exists()]
    if not silent:
        return False
    result = judge_silent(plan, run, silent[0], "nothing is left that says why")
    then = retry.Next(retry.END, "started anew")
    if place.restarts:
        then = retry.decide(plan.retry, [*history(run, silent[0]), result], Chances(slurm=True, requeued=True))
    result = replace(result, then=then.words())
    insist(lambda: result.write(silent[0].verdict))
    over = place.restarts > 0 and then.what == retry.END
    if over:
        insist(lambda: result.write(run.result))
    return over


def conclude_killed(plan: Plan, run: RunDir, place: Place, code: int) -> None:
    """What the batch script does when the agents have ended and node 0 had no time to say why. Does nothing else."""
    attempts, job = run.attempts(), Job.of(run, place)
    if not attempts or attempts[-1].verdict.exists() or job is None or job.requeued():
        return
    result = judge_silent(plan, run, attempts[-1], f"the agent of node 0 ended with code {code}")
    conclude(plan, run, attempts[-1], result, job, can_stay=False)
