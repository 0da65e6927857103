"""What ``scontrol --oneliner show`` says of partitions, nodes and the configuration, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIELD = re.compile(r"(\w[\w/:]*)=(.*?)(?=\s+\w[\w/:]*=|\s*$)")
"""A value may hold blanks (OS, Reason); the next field begins at a word that is followed by an equals sign."""


@dataclass(frozen=True)
class Gpus:
    """GPUs of one type in a node; the type is empty where the site gives none, and ``1g.10gb`` for a slice (MIG)."""

    kind: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} {self.kind or 'GPUs'}"


@dataclass(frozen=True)
class Node:
    """What a node has for jobs."""

    name: str
    cpus: int
    memory_mb: int
    """Mebibytes."""
    gpus: tuple[Gpus, ...]
    partitions: tuple[str, ...]

    @property
    def gpu_count(self) -> int:
        return sum(gpus.count for gpus in self.gpus)


@dataclass(frozen=True)
class Partition:
    """A queue."""

    name: str
    default: bool
    up: bool
    max_time: str
    """In Slurm's notation, or ``UNLIMITED``."""
    whole_nodes: bool
    """Jobs get nodes for themselves, whatever they ask for."""


def parse_partitions(text: str) -> list[Partition]:
    """From ``scontrol --oneliner show partition``."""
    return [
        Partition(
            name=fields["PartitionName"],
            default=fields.get("Default") == "YES",
            up=fields.get("State") == "UP",
            max_time=fields.get("MaxTime", "UNLIMITED"),
            whole_nodes=fields.get("OverSubscribe") == "EXCLUSIVE",
        )
        for fields in map(_fields, text.splitlines())
        if "PartitionName" in fields
    ]


def parse_nodes(text: str) -> list[Node]:
    """From ``scontrol --oneliner show node``; CPUs and memory less what the site keeps for itself."""
    return [
        Node(
            name=fields["NodeName"],
            cpus=int(fields.get("CPUEfctv") or fields["CPUTot"]),
            memory_mb=int(fields["RealMemory"]) - int(fields.get("MemSpecLimit", 0)),
            gpus=parse_gres(fields.get("Gres", "")),
            partitions=tuple(fields.get("Partitions", "").split(",")),
        )
        for fields in map(_fields, text.splitlines())
        if "NodeName" in fields
    ]


def parse_gres(text: str) -> tuple[Gpus, ...]:
    """The GPUs in a list of generic resources: ``gpu:a100:2(S:0-1),gpu:1g.10gb:7,shard:8``."""
    items = (item.split(":") for item in re.sub(r"\([^)]*\)", "", text).split(","))
    return tuple(_gpus(rest) for name, *rest in items if name == "gpu")


def _gpus(parts: list[str]) -> Gpus:
    count = int(parts.pop()) if parts and parts[-1].isdigit() else 1
    return Gpus(parts[0] if parts else "", count)


def parse_config(text: str) -> dict[str, str]:
    """From ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _fields(line: str) -> dict[str, str]:
    return dict(_FIELD.findall(line))
