"""From what the nodes reported to the verdict: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.node.hang.hint import hint
from launcher.node.hang.watch import Suspicion
from launcher.node.ranks import Failure, Report
from launcher.plan.plan import Plan
from launcher.records.known import BY_ID
from launcher.records.preflight import Finding
from launcher.records.result import COMPLETED, FAILED, STOPPED, Result
from launcher.slurm.fate import Stop


@dataclass
class Findings:
    """What node 0 knows at the end of an attempt."""

    reports: dict[int, Report] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    """Hosts that were there and are gone, and since when (seconds since the epoch)."""
    dead: list[str] = field(default_factory=list)
    """Those of them that said nothing, as a node without power does; the agent alone would have been missed at once."""
    missing: list[str] = field(default_factory=list)
    """Hosts that never came."""
    stopped_by: str = ""
    """The request to stop that came first, before any failure: ``interrupted``, ``time_limit``, or, of a SIGTERM, what
    it was for."""

    unfit: list[Finding] = field(default_factory=list)
    """Errors that the preflight found, which ended the attempt."""
    warnings: list[Finding] = field(default_factory=list)
    """What was silently wrong while the ranks ran."""
    suspicion: Suspicion | None = None
    """What was found when the run stood still, if it has not moved since."""
    hung: bool = False
    """That is why the attempt was ended."""

    def hosts_to_avoid(self, cause: str) -> list[str]:
        """The hosts whose fault it was."""
        faulty = {"rendezvous": self.missing, "preflight": [finding.host for finding in self.unfit]}
        return self.dead or list(dict.fromkeys(faulty.get(cause, [])))

    @property
    def failed(self) -> bool:
        return bool(self.hung or self.lost or self.missing or any(report.code for report in self.reports.values()))

    def explain_stop(self, stop: Stop) -> None:
        """Take in what Slurm says of the signal that it has sent, and of the hosts.

        A site may have the warning of the time limit sent before a preemption, too.
        """
        if stop.cause != "terminated":
            self.stopped_by = stop.cause
        if stop.cause == "node_lost":
            self.lost, self.dead = {**dict.fromkeys(stop.down, 0.0), **self.lost}, list(stop.down)


BY_ITSELF = ("solved", "max_iterations")
"""Reasons of a training that was done: a request that came while it ended stopped nothing."""


def judge(plan: Plan, findings: Findings, training: Mapping[str, Any], attempts: int, seconds: float) -> Result:
    """One cause: the request to stop, else the first thing that went wrong, else how the training ended by itself.

    `training` is what rank 0 last said of it; empty for scripts that say nothing.
    """
    facts: dict[str, Any] = {
        "iteration": training.get("iteration"),
        "resumed_at": training.get("resumed_at", 0),
        "world_size": training.get("world_size", plan.resources.world_size),
        "ranks_in_sync": training.get("ranks_in_sync"),
        "metrics": training.get("metrics", {}),
        "attempts": attempts,
        "seconds": round(seconds, 1),
        "warnings": [vars(one) for one in findings.warnings],
    }
    ended_by_itself = not findings.failed and training.get("reason") in BY_ITSELF
    if (
        findings.stopped_by in ("terminated", "node_lost") and findings.lost
    ):  # srun ends the step when a task of it has ended badly
        return _lost(findings, facts)
    if findings.stopped_by and not ended_by_itself:
        waited = f"while waiting for {', '.join(findings.missing)}" if findings.missing else ""
        return Result(STOPPED, findings.stopped_by, waited, **facts)
    if findings.failed:
        return _failed(plan, findings, facts)
    return Result(COMPLETED, training.get("reason") or "finished", **facts)


def _failed(plan: Plan, findings: Findings, facts: dict[str, Any]) -> Result:
    if findings.unfit:
        return _unfit(findings.unfit, facts)
    if findings.missing:
        hosts = ", ".join(findings.missing)
        hint = _NOT_STARTED if plan.scheduler == "none" else _MISSING
        return Result(FAILED, "rendezvous", f"no agent came from {hosts}", host=findings.missing[0], hint=hint, **facts)
    first = first_failure(list(findings.reports.values()))
    hang = findings.suspicion
    if hang is not None and findings.hung:
        return _hang(plan, hang, facts)
    if findings.lost and (first is None or _is_victim(first) or min(findings.lost.values()) < first.ended):
        return _lost(findings, facts)
    if hang is not None and first is not None and first.rank in hang.diagnosis.waiting:
        return _hang(plan, hang, facts)  # it waited until torch's own limit
    if first is not None:
        return _crash(first, facts)
    return _launch(findings.reports.values(), facts)


OF_THE_RUN = frozenset(
    (
        "run-dir", "scratch", "interface", "python", "script", "gpu-cuda", "odd-versions", "odd-script", "torch",
        "interconnect",
    )
)  # fmt: skip
"""Checks that find what is wrong with the configuration or the software: no other node would be better."""


def _unfit(unfit: Sequence[Finding], facts: dict[str, Any]) -> Result:
    first = next((finding for finding in unfit if finding.check in OF_THE_RUN), unfit[0])
    cause = "setup" if first.check in OF_THE_RUN else "preflight"
    return Result(FAILED, cause, f"{first.host}: {first.message}", host=first.host, **facts)


def _launch(reports: Iterable[Report], facts: dict[str, Any]) -> Result:
    """A torchrun that could not start its ranks, and not one that was ended because of it."""
    broken = max((report for report in reports if report.code), key=lambda report: report.code)
    message = f"{broken.host}: {broken.message}"
    return Result(FAILED, "launch", message, host=broken.host, exit_code=broken.code, hint=_LAUNCH, **facts)


def _lost(findings: Findings, facts: dict[str, Any]) -> Result:
    host = min(findings.lost, key=findings.lost.__getitem__)
    return Result(FAILED, "node_lost", f"lost contact with {host}", host=host, **facts)


_MOMENT_S = 10.0
"""A rank that loses a peer may be gone before that one: it does not tidy up, and clocks differ."""


def first_failure(reports: Sequence[Report]) -> Failure | None:
    """The failure that came first: the others are its victims, or were ended because of it.

    One that only tells of a lost peer is no cause where another rank failed by itself in the same moment.
    """
    failures = sorted((one for report in reports for one in report.failures), key=lambda one: one.ended)
    if not failures or not _is_victim(failures[0]):
        return failures[0] if failures else None
    others = (one for report in reports for one in _by_themselves(report))
    near = [one for one in others if one.ended - failures[0].ended < _MOMENT_S]
    return min(near, key=lambda one: one.ended, default=failures[0])


def _is_victim(failure: Failure) -> bool:
    return failure.known in BY_ID and BY_ID[failure.known].victim


def _by_themselves(report: Report) -> Iterator[Failure]:
    """The failures of a node that were nobody else's doing; torchrun ends the others of its node after the first."""
    first = min((one.ended for one in report.failures), default=0.0)
    for one in report.failures:
        ended_by_us = one.stopped or (one.signal in _OF_A_STOP and one.ended > first)
        if not _is_victim(one) and (one.message or not ended_by_us):
            yield one


_OF_A_STOP = ("SIGTERM", "SIGKILL")


def _crash(first: Failure, facts: dict[str, Any]) -> Result:
    reason = BY_ID.get(first.known)
    where = f"the {'traceback' if first.message else 'end of its output'} is in {first.log}"
    return Result(
        FAILED,
        "ranks_out_of_sync"
        if facts["ranks_in_sync"] is False
        else reason.cause
        if reason and reason.cause
        else "crash",
        first.message,
        rank=first.rank,
        host=first.host,
        exit_code=None if first.signal else first.exit_code,
        signal=first.signal,
        log=first.log,
        known=first.known,
        hint=f"{reason.hint} · {where}" if reason else where,
        **facts,
    )


def _hang(plan: Plan, suspicion: Suspicion, facts: dict[str, Any]) -> Result:
    found = suspicion.diagnosis
    what_to_do = hint(plan, suspicion)
    return Result(FAILED, "hang", found.message, rank=found.rank, host=found.host, hint=what_to_do, **facts)


_MISSING = "is the node up, can it read the run directory and reach the first node? its agent's output is in slurm/"
_NOT_STARTED = "was its command started there in time, and can it reach the first host? watch.rendezvous=S waits longer"
_LAUNCH = "torchrun itself failed before any rank did; see node-*.log of the attempt"
