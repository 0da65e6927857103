"""What to do about a hang. Pure functions."""

from __future__ import annotations

from launcher.node.hang.watch import Suspicion
from launcher.plan.plan import Plan

INSIDE_A_NODE = ("p2p_off", "shm_off", "cumem_off")
BETWEEN_NODES = ("ib_off", *INSIDE_A_NODE)
"""Entries of the NCCL catalogue that have cured collectives which did not end, the likeliest first."""
_STACKS = "the stacks of all threads are in stacks-RANK.txt of the attempt; if it was only a long pause: watch.hang_end"
_NETWORK = "do the nodes reach each other? cluster.network_interface names the interface that connects them"


def hint(plan: Plan, suspicion: Suspicion) -> str:
    """The next step for a person."""
    if not suspicion.diagnosis.stalled:
        return _STACKS
    if plan.training["device"] == "cpu" or not plan.resources.gpus_per_node:
        return _NETWORK
    busy = "all GPUs compute at full load, as they do while NCCL waits; " if suspicion.gpus_busy else ""
    in_force = {setting.origin for setting in plan.environment}
    known = INSIDE_A_NODE if plan.resources.nodes == 1 else BETWEEN_NODES
    left = ", ".join(f"nccl=[+{name}]" for name in known if f"nccl {name}" not in in_force)
    trial = f"try one at a time: {left}; what each costs: " if left else ""
    return f"{busy}{trial}python -m launcher nccl list"
