"""What a sandbox is made of, and where its files lie."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOGIN_NODE = "ctl"
STATE = Path("/run/slurm")
"""State of the daemons, on the site's private /run: it vanishes with the site, and socket paths stay short however
long the path of the root directory is (the limit is 107 characters)."""
LOGS = STATE / "log"
"""The root directory's log as the daemons see it: a path that slurm.conf can hold, whatever is in the root's."""


@dataclass(frozen=True)
class Settings:
    root: Path
    """Directory of this sandbox: configuration in etc, logs in log. Removed by stop."""
    nodes: tuple[str, ...] = ("node1", "node2", "node3", "node4")
    cpus: int = 64
    memory_mb: int = 512_000
    gpus: int = 2
    """GPUs per node. They, the CPUs and the memory are pretended: Slurm hands them out, nothing is behind them."""
    gpu_type: str = "a100"
    accounting: bool = True
    """slurmdbd and MariaDB, so that sacct works; else accounting_storage/none."""
    extra_conf: str = ""
    """Lines added to slurm.conf. A key set here wins over the sandbox's own value."""
    memory_limits: bool = False
    """Have Slurm hold jobs to their memory, with the kernel's control groups of version 1."""
    slurmd_timeout: int = 10
    """Seconds without an answer after which a node counts as down."""
    grace: int = 5
    """Seconds between SIGTERM and SIGKILL for a preempted job of partition main."""
    keep_logs: Path | None = None
    """Copy the logs there at the end."""

    def __post_init__(self) -> None:
        _check_names(self.nodes)
        if self.root.is_relative_to("/run"):
            raise ValueError(f"{self.root}: the sandbox covers /run with its own, choose another directory")

    @property
    def slurm_conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    def address(self, node: str) -> str:
        """IP address of a node; the login node is 10.77.0.1."""
        number = self.nodes.index(node)
        return f"10.77.{1 + number // 250}.{1 + number % 250}"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        values = json.loads(text)
        kept = values["keep_logs"]
        return cls(
            **values | {"root": Path(values["root"]), "nodes": tuple(values["nodes"]), "keep_logs": kept and Path(kept)}
        )


def node_names(nodes: Sequence[str] | int) -> tuple[str, ...]:
    """Names as given, or node1 to nodeN."""
    return tuple(f"node{number}" for number in range(1, nodes + 1)) if isinstance(nodes, int) else tuple(nodes)


def _check_names(names: tuple[str, ...]) -> None:
    if not names or len(set(names)) != len(names):
        raise ValueError(f"node names must be given, and differ: {', '.join(names) or 'none'}")
    for name in names:
        if name in (LOGIN_NODE, "localhost") or not re.fullmatch(r"[a-z][a-z0-9-]{0,62}", name):
            raise ValueError(f"not a name for a node: {name!r}")
