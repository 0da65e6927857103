"""Which node of which start of a run this process is."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator, Mapping
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
    start_id: str | None
    """The same on all nodes of this start, and on no other start of any run. None: node 0 has made it up, and its
    record of the submission tells it."""
    job_id: str | None = None
    restarts: int = 0
    """How often Slurm had requeued the job before this start."""
    packed: bool = False
    """Whether the job holds other runs, too."""

    @property
    def leader(self) -> bool:
        """Node 0 decides for all."""
        return self.node == 0

    @property
    def host(self) -> str:
        return self.hosts[self.node]


def find_place(plan: Plan, environ: Mapping[str, str], node: int | None = None) -> Place:
    """Read the place from Slurm's variables, from the command that a person started here, or from this machine.

    Raises:
        LauncherError: the plan is for Slurm and this is no task of a job, or of one with another number of nodes; or
            the command of another host was started here.
    """
    if plan.scheduler == "local":
        return Place(0, (socket.gethostname(),), plan.run_id)
    if plan.scheduler == "none":
        return _by_hand(plan, node)
    found = allocation(environ)
    if found is None:
        raise LauncherError("this is no task of a Slurm job: start it with srun, one task per node")
    if PACKED_VARIABLE in environ:
        start_id = f"{found.job_id}.{found.restarts}.{plan.run_id}"
        return Place(0, (found.hosts[found.node],), start_id, found.job_id, found.restarts, packed=True)
    if not plan.resources.enough <= len(found.hosts) <= plan.resources.most_allocated:
        raise LauncherError(f"nodes in the plan: {plan.resources.most_allocated}, and in the job: {len(found.hosts)}")
    return Place(found.node, found.hosts, f"{found.job_id}.{found.restarts}", found.job_id, found.restarts)


def _by_hand(plan: Plan, node: int | None) -> Place:
    if node is None or not 0 <= node < len(plan.hosts):
        raise LauncherError(f"which node is this? give its number, from 0 to {len(plan.hosts) - 1}")
    if not is_this_host(plan.hosts[node]):
        here = next((host for host in plan.hosts if is_this_host(host)), None)
        hint = f"start the command of {here} here" if here else f"it is none of {', '.join(plan.hosts)}"
        raise LauncherError(f"this command is for {plan.hosts[node]}, and this host is {socket.gethostname()}: {hint}")
    return Place(node, plan.hosts, secrets.token_hex(8) if node == 0 else None)


def is_this_host(name: str) -> bool:
    """Whether a host's name or address is this machine's: its own name, with or without a domain, or one to bind to."""
    first_words = {text.split(".", maxsplit=1)[0] for text in (name, socket.gethostname())}
    return len(first_words) == 1 or any(map(_is_ours, _addresses(name)))


def _addresses(name: str) -> Iterator[tuple[socket.AddressFamily, tuple[object, ...]]]:
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM):
            yield family, address


def _is_ours(address: tuple[socket.AddressFamily, tuple[object, ...]]) -> bool:
    family, where = address
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True
