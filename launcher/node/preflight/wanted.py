"""What a run wants of a node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.node.place import Place
from launcher.plan.plan import Plan
from launcher.slurm.hostlist import expand


@dataclass(frozen=True)
class Wanted:
    """What a run wants of this node."""

    host: str
    hosts: tuple[str, ...] = ()
    """All nodes, the master first."""
    device: str = "auto"
    gpus: int | None = None
    """How many; 0: none, None: those that are there."""
    ranks: int = 1
    cpus: int | None = None
    memory_mb: int | None = None
    run_dir: str = ""
    scratch: str = ""
    python: str = ""
    """The ranks' interpreter; empty where it is in an image."""
    script: str = ""
    """The file that the ranks run, where it is one of the user's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the ranks on this node."""
    leader_time: float | None = None
    """What the master's clock showed at the moment when this was made; seconds since the epoch."""

    @property
    def several(self) -> bool:
        return len(self.hosts) > 1

    @property
    def master(self) -> str:
        return self.hosts[0] if self.hosts else self.host


def wanted(plan: Plan, place: Place, leader_time: float | None = None) -> Wanted:
    """What a plan wants of the node at a place; to be asked there.

    `leader_time` is what node 0's clock shows now, as far as this node knows: from a message that has just come.
    """
    asked = plan.resources
    return Wanted(
        host=place.host,
        hosts=place.hosts,
        device=plan.training.get("device", "auto"),
        gpus=asked.gpus_per_node or (0 if plan.scheduler == "slurm" else None),
        ranks=asked.nproc_per_node,
        cpus=asked.cpus_per_node,
        memory_mb=asked.memory_mb_per_node,
        run_dir=plan.run_dir,
        scratch=plan.scratch,
        python="" if plan.container else plan.python,
        script=_script(plan),
        environment={**os.environ, **plan.values(names=lambda hosts: place.host in expand(hosts))},
        leader_time=leader_time,
    )


def _script(plan: Plan) -> str:
    """The task's own file, as the snapshot has it once the run is there."""
    path = plan.training.get("task", {}).get("path")
    return next((word for word in plan.entry if path and Path(word).name == Path(path).name), "")
