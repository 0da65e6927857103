"""Attempts whose node 0 was cut off before it could say how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import SchedulerError
from launcher.node import retry
from launcher.node.conclusion import conclude, finish, history, insist, lasted, progress_of, tell_slurm
from launcher.node.job import Job
from launcher.node.place import Place
from launcher.node.retry import Chances, Next
from launcher.node.starved import starved
from launcher.plan.plan import Plan
from launcher.records.files import read_json, read_json_lines
from launcher.records.result import FAILED, STOPPED, Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.slurm import commands
from launcher.slurm.fate import Stop

_UNSAVED = "killed before its ranks had saved"


def judge_silent(plan: Plan, run: RunDir, attempt: Attempt, message: str, stop: Stop | None = None) -> Result:
    """The verdict on an attempt that left none: Slurm has ended it, its hosts are down, or it was killed.

    Args:
        plan: of the run.
        run: its records.
        attempt: the one that was cut off.
        message: what is known of the end, should nothing better be found.
        stop: what Slurm says now; what it said to the attempt itself comes first.
    """
    hosts: Sequence[str] = (read_json(attempt.rendezvous) or {}).get("hosts", [])
    stop = _told(attempt) or stop or Stop("terminated")
    down = [*stop.down] or _down(hosts)
    iteration, resumed_at = progress_of(run, attempt)
    outcome, cause = _outcome(stop, down)
    return Result(
        outcome,
        cause,
        {"killed": message, "node_lost": f"{', '.join(down)} went down"}.get(cause, _UNSAVED),
        host=(down or list(hosts) or [None])[0],
        iteration=iteration,
        resumed_at=resumed_at,
        world_size=plan.resources.world_size,
        attempts=attempt.number + 1,
        seconds=lasted(attempt),
    )


def _outcome(stop: Stop, down: Sequence[str]) -> tuple[str, str]:
    """A SIGTERM that Slurm knows nothing of explains no SIGKILL."""
    if stop.cause not in ("terminated", "node_lost"):
        return STOPPED, stop.cause
    return FAILED, "node_lost" if down else "killed"


def _told(attempt: Attempt) -> Stop | None:
    """What Slurm said when it asked the attempt to stop."""
    asked = (event for event in read_json_lines(attempt.events) if event.get("event") == "asked")
    stops = [Stop(event["cause"], event["down"]) for event in asked if event["cause"] != "terminated"]
    return stops[-1] if stops else None


def _down(hosts: Sequence[str]) -> list[str]:
    try:
        return commands.down(hosts) if hosts else []
    except SchedulerError:
        return []


def settle_earlier(plan: Plan, run: RunDir, attempt: Attempt, place: Place) -> bool:
    """Judge the attempts before this one that left no verdict. Returns True where the run is not to go on after them.

    When Slurm has not requeued the job, a person has started the run again, and what happened before does not count.
    """
    silent = [one for one in run.attempts() if one.number < attempt.number and not one.verdict.exists()]
    then = [_settle(plan, run, one, requeued=place.restarts > 0) for one in silent]
    return bool(then) and place.restarts > 0 and then[-1].what == retry.END


def _settle(plan: Plan, run: RunDir, attempt: Attempt, requeued: bool) -> Next:
    result = judge_silent(plan, run, attempt, "nothing is left that says why")
    then = retry.Next(retry.END, "started anew")
    if requeued:
        then = retry.decide(plan.retry, [*history(run, attempt), result], Chances(slurm=True, requeued=True))
    result = replace(result, then=then.words())
    insist(lambda: result.write(attempt.verdict))
    if requeued and then.what == retry.END:
        finish(plan, run, attempt, result)
    return then


def conclude_start(plan: Plan, run: RunDir, place: Place, code: int) -> bool:
    """What the batch script does when the agents have ended badly: what node 0 had no time to do, and else nothing.

    Returns:
        True when the run is to go on in the next start of the job.
    """
    job, attempt = Job.of(run, place), _attempt_of(run, place)
    said = None if attempt is None else read_result(attempt.verdict)
    if job is None or run.result.exists() or (said is not None and said.then.startswith(retry.END)) or job.gone_on():
        return False
    if said is not None:  # its node 0 was killed before it had done what it had decided
        return tell_slurm(plan, run, job, Next(retry.REQUEUE)).what == retry.REQUEUE
    stop = job.why_stopped(place.hosts)
    if attempt is None:
        attempt = run.claim_attempt()
        if settle_earlier(plan, run, attempt, place):
            return False
        result = _never_began(plan, run, place, code, stop)
    else:
        result = judge_silent(plan, run, attempt, f"the agent of node 0 ended with code {code}", stop)
        result = starved(run, result)
    _, then = conclude(plan, run, attempt, result, job, can_stay=False)
    return then.what == retry.REQUEUE


def _attempt_of(run: RunDir, place: Place) -> Attempt | None:
    """The newest attempt, if it is one of this start."""
    for attempt in run.attempts()[-1:]:
        first = next(read_json_lines(attempt.events), {})
        if (first.get("job_id"), first.get("restarts")) == (place.job_id, place.restarts):
            return attempt
    return None


def _never_began(plan: Plan, run: RunDir, place: Place, code: int, stop: Stop) -> Result:
    """The verdict on a start without an agent: Slurm's fault in a job that has started before, else a mistake's."""
    if stop.cause not in ("terminated", "node_lost"):
        outcome, cause, message = STOPPED, stop.cause, "before any agent had started"
    else:
        outcome, cause = FAILED, "rendezvous" if place.restarts else "launch"
        message = f"no agent could start: srun ended with code {code}"
    hint = f"what srun and the agents printed is in {run.slurm}" if outcome == FAILED else ""
    width, attempts = plan.resources.world_size, len(run.attempts())
    return Result(outcome, cause, message, host=place.host, hint=hint, world_size=width, attempts=attempts)
