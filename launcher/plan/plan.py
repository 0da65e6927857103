"""The plan of a run: plain data, JSON both ways. Standard library only, so that the node agents can read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
"""Of the form of plan.json; raised when a reader of the older form would misunderstand a newer one."""


@dataclass(frozen=True)
class Setting:
    """An environment variable of the ranks, and why it is there."""

    name: str
    value: str
    origin: str
    """The layer that set it: ``launcher``, ``library rsl_rl``, ``nccl p2p_off``, ``cluster a100x2`` …"""
    reason: str = ""


@dataclass(frozen=True)
class Resources:
    """What the run occupies, per node unless it says otherwise. None leaves the choice to Slurm."""

    nodes: int
    """How many nodes in all."""
    nproc_per_node: int
    """Ranks."""
    gpus_per_node: int
    cpus_per_node: int | None = None
    memory_mb_per_node: int | None = None
    """Mebibytes."""
    time_s: int | None = None
    """The time limit of the job, seconds."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node


@dataclass(frozen=True)
class Budgets:
    """How long the agents wait, seconds."""

    rendezvous_s: float
    stop_grace_s: float


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a run starts."""

    run_id: str
    run_dir: str
    """Absolute."""
    name: str
    """The job's name."""
    scheduler: str
    """``slurm`` or ``local``."""
    submit_dir: str
    """The directory the run was submitted from: relative paths of the configuration start here."""
    workdir: str
    """Where the ranks start: the directory the run was submitted from, or its copy in the snapshot."""
    python: str
    """The interpreter of the ranks, and of torchrun."""
    entry: tuple[str, ...]
    """The command that torchrun starts as every rank."""
    resources: Resources
    budgets: Budgets
    environment: tuple[Setting, ...] = ()
    """Later settings win; what the node alone knows (rank, master, attempt) is added there."""
    directives: dict[str, Any] = field(default_factory=dict)
    """Options of sbatch, by name; empty without Slurm."""
    setup: tuple[str, ...] = ()
    """Lines of shell that the batch script runs before anything else."""
    srun_args: tuple[str, ...] = ()
    repository: str = ""
    """The directory whose files the snapshot holds; empty without one."""
    snapshot: str = ""
    """The copy of the code that the ranks run from; empty where they run from the code itself."""
    import_paths: tuple[str, ...] = ()
    """Directories of the snapshot in which the ranks find the user's packages, before any others."""
    tracker: tuple[str, ...] = ()
    """The command that reports the metrics to trackers, beside the ranks of node 0; empty without any."""
    resume: str = ""
    """A checkpoint of another run to start from, or empty."""
    console: str = "log"
    training: dict[str, Any] = field(default_factory=dict)
    """The configuration that the ranks read: task, library, agent, seed, iterations."""
    version: int = VERSION

    def values(self) -> dict[str, str]:
        """The environment after all layers."""
        return {setting.name: setting.value for setting in self.environment}

    @property
    def one_line_name(self) -> str:
        """The name for a line of text, without line breaks and codes that a terminal would obey."""
        return "".join(character if character.isprintable() else " " for character in self.name)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a plan that :meth:`to_json` wrote.

        Raises:
            ValueError: the text is no plan, or one of another version.
        """
        data = json.loads(text)
        if data.get("version") != VERSION:
            raise ValueError(f"this is a plan of version {data.get('version')}, and version {VERSION} is read here")
        nested: dict[str, Any] = {
            "resources": Resources(**data["resources"]),
            "budgets": Budgets(**data["budgets"]),
            "environment": tuple(Setting(**setting) for setting in data["environment"]),
            **{key: tuple(data[key]) for key in ("entry", "setup", "srun_args", "import_paths", "tracker")},
        }
        return Plan(**{**data, **nested})
