"""Which node of which start of a run this process is."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.errors import LauncherError
from launcher.plan.plan import Plan
from launcher.slurm.allocation import allocation

PACKED_VARIABLE = "LAUNCHER_PACKED"
"""Set where several runs share an allocation: each of them has one node, whatever the allocation has."""


@dataclass(frozen=True)
class Place:
    """This node among the nodes of the start."""

    node: int
    hosts: tuple[str, ...]
    start_id: str
    """The same on all nodes of this start, and on no other start of any run: job and restart."""
    job_id: str | None = None

    @property
    def leader(self) -> bool:
        """Node 0 decides for all."""
        return self.node == 0

    @property
    def host(self) -> str:
        return self.hosts[self.node]


def find_place(plan: Plan, environ: Mapping[str, str]) -> Place:
    """Read the place from Slurm's variables, or, for a local run, from this machine.

    Raises:
        LauncherError: the plan is for Slurm and this is no task of a job, or of one with another number of nodes.
    """
    if plan.scheduler == "local":
        return Place(0, (socket.gethostname(),), plan.run_id)
    found = allocation(environ)
    if found is None:
        raise LauncherError("this is no task of a Slurm job: start it with srun, one task per node")
    if PACKED_VARIABLE in environ:
        start_id = f"{found.job_id}.{found.restarts}.{plan.run_id}"
        return Place(0, (found.hosts[found.node],), start_id, found.job_id)
    if len(found.hosts) != plan.resources.nodes:
        raise LauncherError(f"the plan is for {plan.resources.nodes} nodes, and the job has {len(found.hosts)}")
    return Place(found.node, found.hosts, f"{found.job_id}.{found.restarts}", found.job_id)
