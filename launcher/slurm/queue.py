"""What squeue, sacct and sacctmgr print, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from launcher.slurm.hostlist import HostListError, expand
from launcher.slurm.partitions import seconds

SQUEUE_FORMAT = "%i|%T|%r|%N|%S|%e|%L|%P|%D|%l|%b"
"""For :func:`parse_squeue`."""
SACCT_FORMAT = "JobID,State,NodeList,End"
"""For :func:`parse_sacct`."""

_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD",
           "RESIZING"}  # fmt: skip
_ACTIVE = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "PREEMPTED_RUNNING"}
_ENDED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
    "REVOKED",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A job as Slurm sees it. Times are seconds since the epoch."""

    state: str
    """Slurm's own word, without the ``by UID`` that sacct adds to CANCELLED."""
    reason: str = ""
    """Why a pending job is pending, in Slurm's word."""
    nodes: str = ""
    starts_at: float | None = None
    """When it began, will begin, or is estimated to; None where Slurm does not say."""
    ends_at: float | None = None
    """When it ended, or will by its time limit."""
    left_s: int | None = None
    """Until its time limit; None without one."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """What it was submitted with, by the names of sbatch's options: ``partition``, ``nodes``, ``time``, ``gres``."""
    never: str = ""
    """Why a pending job can never start, as things are; empty where it can, or where that is not known."""
    gone: bool = False
    """The queue no longer has it, whatever the accounting says of it."""
    as_of: float | None = None
    """When Slurm said so, where it cannot be asked now."""

    @property
    def queued(self) -> bool:
        return self.state in _QUEUED and not self.gone

    @property
    def active(self) -> bool:
        return self.state in _ACTIVE and not self.gone

    @property
    def ended(self) -> bool:
        """True of the states that Slurm documents as final, and of what has left the queue.

        An unknown word alone is never taken for an end.
        """
        return self.gone or is_end(self.state)


def is_end(state: str) -> bool:
    """Whether Slurm's word is one for a job that has ended."""
    return state in _ENDED


def parse_squeue(text: str) -> dict[str, Job]:
    """Jobs by id, from ``--format=SQUEUE_FORMAT``."""
    separators = SQUEUE_FORMAT.count("|")
    rows = (line.strip().split("|") for line in text.splitlines() if line.count("|") == separators)
    return {job_id: _queued(*rest) for job_id, *rest in rows}


def _queued(state: str, reason: str, nodes: str, start: str, end: str, left: str, *asks: str) -> Job:
    return Job(
        state, "" if reason == "None" else reason, nodes, _time(start), _time(end), seconds(left),
        dict(zip(("partition", "nodes", "time", "gres"), asks)),
    )  # fmt: skip


def parse_sacct(text: str) -> dict[str, Job]:
    """Jobs by id, from ``--parsable2 --format=SACCT_FORMAT``; each waiting task of an array by its own."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.count("|") == SACCT_FORMAT.count(","))
    return {
        job_id: Job(
            state=(state.split() or ["UNKNOWN"])[0],
            nodes="" if nodes == "None assigned" else nodes,
            ends_at=_time(end),
        )
        for job_ids, state, nodes, end in rows
        for job_id in _each(job_ids)
    }


def _each(job_ids: str) -> list[str]:
    """``7_[0,4-5%2]`` stands for 7_0, 7_4 and 7_5."""
    try:
        return expand(f"{job_ids.partition('%')[0]}]" if "%" in job_ids else job_ids)
    except HostListError:
        return [job_ids]


def _time(text: str) -> float | None:
    """Slurm's times are in the zone of who asks: ``2026-11-30T19:07:24``, or a word for none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def parse_scripts(text: str) -> dict[str, str]:
    """Batch scripts by job id, from ``squeue --format=%F|%o``; a path may hold the separator."""
    rows = (line.strip().partition("|") for line in text.splitlines())
    return {job_id: script for job_id, separator, script in rows if separator}


def parse_limits(text: str) -> int | None:
    """The smallest number among lines of ``sacctmgr --parsable2``; associations without a limit have empty lines."""
    numbers = [int(word) for word in text.split() if word.isdigit()]
    return min(numbers, default=None)
