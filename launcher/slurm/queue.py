"""What squeue, sacct and sacctmgr print, as data."""

from __future__ import annotations

from dataclasses import dataclass

_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESIZING"}
_ACTIVE = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "PREEMPTED_RUNNING"}
_ENDED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
    "REVOKED",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A job as Slurm sees it."""

    state: str
    """Slurm's own word, without the ``by UID`` that sacct adds to CANCELLED."""
    reason: str = ""
    """Why a pending job is pending."""
    nodes: str = ""

    @property
    def queued(self) -> bool:
        return self.state in _QUEUED

    @property
    def active(self) -> bool:
        return self.state in _ACTIVE

    @property
    def ended(self) -> bool:
        """True for the states that Slurm documents as final; an unknown word is never taken for an end."""
        return self.state in _ENDED


def parse_squeue(text: str) -> dict[str, Job]:
    """Jobs by id, from ``--format=%i|%T|%r|%N``."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.count("|") == 3)
    return {job_id: Job(state, "" if reason == "None" else reason, nodes) for job_id, state, reason, nodes in rows}


def parse_sacct(text: str) -> dict[str, Job]:
    """Jobs by id, from ``--parsable2 --format=JobID,State,NodeList``."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.count("|") == 2)
    return {
        job_id: Job((state.split() or ["UNKNOWN"])[0], "", "" if nodes == "None assigned" else nodes)
        for job_id, state, nodes in rows
    }


def parse_scripts(text: str) -> dict[str, str]:
    """Batch scripts by job id, from ``squeue --format=%F|%o``; a path may hold the separator."""
    rows = (line.strip().partition("|") for line in text.splitlines())
    return {job_id: script for job_id, separator, script in rows if separator}


def parse_limits(text: str) -> int | None:
    """The smallest number among lines of ``sacctmgr --parsable2``; associations without a limit have empty lines."""
    numbers = [int(word) for word in text.split() if word.isdigit()]
    return min(numbers, default=None)
