"""What follows the end of an attempt: nothing, or another one, here or back in the queue. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.plan.plan import Retry
from launcher.records.result import COMPLETED, Result

END, AGAIN, REQUEUE, LEFT_TO_SLURM = "ended", "again in this job", "requeued", "requeued by Slurm"
"""What follows. AGAIN: at once, in the same allocation. LEFT_TO_SLURM: it has decided already to start again."""

BUDGETS = {
    "preempted": "preempted",
    "time_limit": "time_limit",
    "node_lost": "node_fail",
    "rendezvous": "node_fail",
    "preflight": "node_fail",
    "killed": "node_fail",
    "crash": "crash",
    "oom": "crash",
    "ranks_out_of_sync": "crash",
    "hang": "hang",
}
"""The key of `retry` that counts a cause. Others are not repeated: a user's wish, a mistake in the configuration."""
NEVER_BEGAN = ("rendezvous", "preflight")
"""Causes of an attempt without progress, whatever the program tells of it."""
OF_THE_PROGRAM = ("crash", "oom", "ranks_out_of_sync", "hang")
"""Causes that the program may repeat for ever by itself."""


@dataclass(frozen=True)
class Next:
    """What follows an attempt, and why the run ends where it could have gone on."""

    what: str
    why: str = ""

    def words(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what


@dataclass(frozen=True)
class Chances:
    """What could follow an attempt, as the node agents see it."""

    here: bool = False
    """There are nodes enough in this allocation, and time."""
    slurm: bool = False
    """The run is a job of Slurm's."""
    requeued: bool = False
    """Slurm has requeued the job already."""


def decide(retry: Retry, history: Sequence[Result], chances: Chances) -> Next:
    """What follows the last of these attempts.

    Args:
        retry: the budgets.
        history: how the attempts of this run ended, the oldest first, since a person has last started it.
        chances: what is possible.
    """
    last = history[-1]
    if last.outcome == COMPLETED:
        return Next(END)
    if last.cause == "requeued" and chances.requeued:
        return Next(LEFT_TO_SLURM)
    if (why := _why_not(retry, history)) is not None:
        return Next(END, why)
    if chances.requeued:
        return Next(LEFT_TO_SLURM)
    if chances.here and retry.in_job and last.cause not in ("preempted", "time_limit"):
        return Next(AGAIN)
    return Next(REQUEUE) if chances.slurm else Next(END)


def _why_not(retry: Retry, history: Sequence[Result]) -> str | None:
    """Why the run ends with its last attempt; None where it may go on."""
    last = history[-1]
    if last.cause not in BUDGETS:
        return ""
    budget = BUDGETS[last.cause]
    used = sum(BUDGETS.get(attempt.cause) == budget for attempt in history)
    allowed: int | None = getattr(retry, budget)
    if allowed is not None and used > allowed:
        return f"retry.{budget}={allowed} is used up" if allowed else ""
    if last.cause in OF_THE_PROGRAM and _will_repeat(history):
        return _hopeless(last)
    idle = [attempt.progress == 0 or attempt.cause in NEVER_BEGAN for attempt in history[-retry.without_progress :]]
    if len(idle) == retry.without_progress and all(idle):
        return f"no progress in {len(idle)} attempts"
    return None


def _hopeless(last: Result) -> str:
    if last.iteration is None:
        return "it does not tell how far it came, and would start anew"
    return "it failed at the same iteration before" if last.iteration else "it failed before its first iteration"


def _will_repeat(history: Sequence[Result]) -> bool:
    """A program that failed at the same iteration twice, or that left by itself before it did anything."""
    last = history[-1]
    earlier = [attempt for attempt in history[:-1] if attempt.cause in OF_THE_PROGRAM]
    if earlier:
        return earlier[-1].iteration == last.iteration
    left_by_itself = last.signal is None and last.cause in ("crash", "oom")
    return left_by_itself and not last.iteration
