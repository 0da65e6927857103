"""What Slurm is doing with a job that is being stopped, as ``scontrol show job`` tells it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.slurm.hostlist import expand

_FIELDS = {
    "state": re.compile(r"^ +JobState=(\S+)", re.MULTILINE),
    "reason": re.compile(r"^ +JobState=\S+ Reason=(\S+)", re.MULTILINE),
    "requeue": re.compile(r"^ +Requeue=(\d)", re.MULTILINE),
    "restarts": re.compile(r"^ +Requeue=\d Restarts=(\d+)", re.MULTILINE),
    "preempted": re.compile(r"^ +(?:PreemptEligibleTime=\S+ )?PreemptTime=(\d\S*)", re.MULTILINE),
    "excluded": re.compile(r"^ +(?:ReqNodeList=\S* )?ExcNodeList=(\S+)", re.MULTILINE),
}
"""Each at its place in a line: a job's name or comment may hold any of these words."""


_GOING_ON = ("CONFIGURING", "RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")
"""States of a job that has started, and that nobody is ending. A task may run in a job that is CONFIGURING."""
_OUT_OF_MEMORY = re.compile(
    r"Detected \d+ oom[-_]kill event|StepId=\S+ exceeded memory limit \(|Exceeded job memory limit|: Out Of Memory"
)
"""The words of slurmstepd and srun, as 22.05 and later print them, for task/cgroup and for OverMemoryKill."""


def out_of_memory(said: str) -> bool:
    """Whether Slurm says in the output of a step that it, or the kernel, killed something for want of memory."""
    return _OUT_OF_MEMORY.search(said) is not None


@dataclass(frozen=True)
class Fate:
    """A job of which Slurm has sent SIGTERM to the processes, or not."""

    state: str
    """Slurm's word. ``COMPLETING`` hides what the job completes as."""
    reason: str
    restarts: int
    """How often Slurm has requeued it; counted up at the moment of the requeue."""
    requeue: bool
    """Whether a requeue is allowed."""
    preempted: bool
    """Chosen to make room. Forgotten when the job is requeued."""
    excluded: str = ""
    """The node list that it must not run on."""

    @property
    def ending(self) -> bool:
        """Whether Slurm is ending the job, or has ended it."""
        return self.state not in _GOING_ON

    def requeued_since(self, restarts: int) -> bool:
        """True when Slurm will start the job again, after the start that knows this number of restarts."""
        return self.restarts > restarts

    def cause(self, restarts: int, hosts_down: bool, said: str) -> str:
        """Why the processes of a start were sent SIGTERM.

        Args:
            restarts: how often the job had been requeued when they started.
            hosts_down: one of their hosts is down.
            said: what slurmstepd has printed into the output of the job. It says why where `scontrol` no longer does.

        Returns:
            ``preempted``, ``time_limit``, ``node_lost``, ``requeued``, ``cancelled``; ``terminated`` when it was not
            Slurm's doing: somebody sent the signal alone.
        """
        if self.preempted or "DUE TO PREEMPTION" in said:
            return "preempted"
        if self.reason == "TimeLimit" or self.state == "TIMEOUT" or "DUE TO TIME LIMIT" in said:
            return "time_limit"
        if hosts_down or self.state == "NODE_FAIL" or "DUE TO NODE FAILURE" in said:
            return "node_lost"
        if self.requeued_since(restarts):
            return "requeued"
        return "cancelled" if self.ending else "terminated"


@dataclass(frozen=True)
class Stop:
    """Why the processes of a start were sent SIGTERM."""

    cause: str
    """In the words of :meth:`Fate.cause`; ``terminated`` where nobody can tell."""
    down: Sequence[str] = ()
    """The hosts that have failed."""
    ending: bool = False
    """Whether Slurm is ending the job: what is left of it gets SIGKILL soon, the batch script too."""


def failed_nodes(said: str) -> list[str]:
    """The nodes of whose failure srun has told; a node that comes back at once is not down when one asks."""
    return [
        host
        for nodes in re.findall(r"^srun: error: Node failure on (\S+)", said, re.MULTILINE)
        for host in expand(nodes)
    ]


def parse_fate(text: str) -> Fate:
    """Read ``scontrol show job ID``, in its form of many lines.

    Raises:
        ValueError: it is something else.
    """
    found = {name: match[1] for name, pattern in _FIELDS.items() if (match := pattern.search(text))}
    if "state" not in found:
        raise ValueError("scontrol shows no job")
    excluded = found.get("excluded", "(null)")
    return Fate(
        state=found["state"],
        reason=found.get("reason", "None"),
        restarts=int(found.get("restarts", "0")),
        requeue=found.get("requeue") == "1",
        preempted="preempted" in found,
        excluded="" if excluded == "(null)" else excluded,
    )
