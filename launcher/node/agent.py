"""The agent of this node: the leader's or a follower's part of an attempt."""

from __future__ import annotations

from launcher.node.follower import Follower
from launcher.node.leader import Leader
from launcher.node.place import Place
from launcher.plan.plan import Plan
from launcher.records.rundir import RunDir


async def serve(plan: Plan, run: RunDir, place: Place) -> int:
    """Do this node's part of an attempt, from the start to the exit code."""
    part = Leader(plan, run, place) if place.leader else Follower(plan, run, place)
    part.listen_to_signals()
    return await part.serve()
