"""How the runs of a sweep become arrays of Slurm: pure functions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.config.schema import Config
from launcher.errors import UserError
from launcher.plan.plan import Plan


@dataclass(frozen=True)
class Array:
    """Runs that one sbatch hands over."""

    allocation: Plan
    """What each index asks Slurm for."""
    tasks: tuple[tuple[Plan, ...], ...]
    """The runs of each index."""
    slots: int | None
    """How many runs an index has at a time on each node; None for one run over all its nodes."""

    @property
    def runs(self) -> int:
        return sum(map(len, self.tasks))

    @property
    def longest(self) -> int:
        """How many runs an index holds."""
        return max(map(len, self.tasks))

    def task_ids(self) -> list[list[str]]:
        return [[plan.run_id for plan in task] for task in self.tasks]


@dataclass(frozen=True)
class Member:
    """A run of a sweep, and the allocation that it would have: its own, or one that it shares."""

    plan: Plan
    allocation: Plan

    @property
    def packed(self) -> bool:
        return self.allocation is not self.plan


def arrays(members: Sequence[Member], most: int) -> list[Array]:
    """The arrays for runs in their order: one for each kind of allocation, cut where an array may not be longer."""
    found: list[Array] = []
    for alike in _kinds(members):
        room = alike[0].allocation.resources
        slots, pack = (room.nproc_per_node, room.world_size) if alike[0].packed else (None, 1)
        plans = [member.plan for member in alike]
        tasks = [tuple(plans[start : start + pack]) for start in range(0, len(plans), pack)]
        chunks = (tasks[start : start + most] for start in range(0, len(tasks), most))
        found += [Array(alike[0].allocation, tuple(chunk), slots) for chunk in chunks]
    return found


def _kinds(members: Sequence[Member]) -> Iterator[list[Member]]:
    """The runs that ask Slurm for the same."""
    kinds: dict[str, list[Member]] = {}
    for member in members:
        kinds.setdefault(_kind(member.allocation), []).append(member)
    yield from kinds.values()


def _kind(plan: Plan) -> str:
    directives = {name: value for name, value in plan.directives.items() if name != "job-name"}
    return json.dumps([directives, plan.setup, plan.srun_args, dataclasses.asdict(plan.resources)])


def directives(array: Array, parallel: int | None, after: str | None) -> dict[str, Any]:
    """Options of sbatch for an array.

    Args:
        array: its runs.
        parallel: how many runs of the sweep may run at a time; None for no limit of ours.
        after: the array before it, where a limit holds for all of them together.
    """
    chosen = {**array.allocation.directives, "job-name": _name(array), "array": f"0-{len(array.tasks) - 1}"}
    if parallel is not None:
        chosen["array"] += f"%{max(1, parallel // array.longest)}"
        if after is not None:
            own = chosen.get("dependency")
            chosen["dependency"] = f"{own},afterany:{after}" if own else f"afterany:{after}"
    return chosen


def _name(array: Array) -> str:
    names = dict.fromkeys(str(plan.directives["job-name"]) for task in array.tasks for plan in task)
    return next(iter(names)) if len(names) == 1 else "sweep"


def packed(config: Config, runs: int) -> tuple[Config, Config]:
    """A run with one GPU, and the allocation that holds ``sweep.pack`` of them, from a profile of whole nodes.

    It is no larger than `runs` of them need.

    Raises:
        UserError: the runs have more than one rank, or do not fill the nodes evenly.
    """
    cluster, pack = config.cluster, config.sweep.pack
    if cluster.most_nodes + cluster.spare_nodes != 1 or (cluster.nproc_per_node or 1) != 1:
        raise UserError(f"sweep.pack={pack} packs runs of one rank: leave out cluster.nodes and cluster.nproc_per_node")
    per_node = min(pack, cluster.gpus_per_node) if cluster.gpus_per_node else pack
    if pack % per_node:
        raise UserError(f"sweep.pack={pack} does not fill nodes of {per_node} GPUs: use a multiple of {per_node}")
    per_node = min(per_node, runs)
    nodes = -(-min(pack, runs) // per_node)
    one = dataclasses.replace(cluster, gpus_per_node=min(1, cluster.gpus_per_node), nproc_per_node=1)
    all_of_them = dataclasses.replace(
        cluster, nodes=nodes, gpus_per_node=per_node if cluster.gpus_per_node else 0, nproc_per_node=per_node
    )
    return dataclasses.replace(config, cluster=one), dataclasses.replace(config, cluster=all_of_them)
