"""What the partitions of a cluster allow, and why a job could never start in one.

The controller's own answer is not enough: ``sbatch --test-only`` promises a start to a job above the time limit of its
partition, or in a partition that is down, and gives one and the same reason to all jobs that no node fits (22.05).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORMAT = "%P|%a|%l|%s|%D|%c|%m|%G"
"""Of sinfo, for :func:`parse_sinfo`."""
_GPU = re.compile(r"gpu(?::(?P<kind>[^:,()]+))??(?::(?P<count>\d+))?(?:\(.*?\))?(?:,|$)")
_MEMORY = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


@dataclass(frozen=True)
class Nodes:
    """Nodes of one kind in a partition."""

    count: int
    cpus: int
    memory_mb: int
    gpus: Mapping[str, int]
    """By type; the type is empty where the site names none."""


@dataclass(frozen=True)
class Partition:
    """What one partition has and allows."""

    name: str
    default: bool
    state: str
    """``up``, ``down``, ``drain`` or ``inactive``."""
    time_s: int | None
    """The longest that a job may ask for, seconds; None without a limit."""
    most_nodes: int | None
    """The most that a job may ask for; None without a limit."""
    nodes: tuple[Nodes, ...] = ()


def parse_sinfo(text: str) -> list[Partition]:
    """The partitions from ``sinfo --noheader --format=FORMAT``, whose lines are kinds of nodes in a partition."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        if line.count("|") != FORMAT.count("|"):
            continue
        name, state, time, sizes, count, cpus, memory, gres = (word.strip() for word in line.split("|"))
        most = sizes.split("-")[-1]
        kind = Nodes(int(count), _number(cpus), _number(memory), _gpus(gres))
        before = found.get(name)
        found[name] = Partition(
            name.rstrip("*"), name.endswith("*"), state, seconds(time), int(most) if most.isdigit() else None,
            (*(before.nodes if before else ()), kind),
        )  # fmt: skip
    return list(found.values())


def why_never(directives: Mapping[str, Any], partitions: Sequence[Partition]) -> str:
    """Why a job with these options of sbatch could start in none of its partitions, or nothing where it could."""
    asked = str(directives.get("partition", "")).split(",")
    chosen = [one for one in partitions if one.name in asked or (asked == [""] and one.default)]
    reasons = [next(_reasons(directives, partition), "") for partition in chosen]
    return "" if "" in reasons else "; ".join(reasons)


def seconds(text: str) -> int | None:
    """Slurm's time, ``[days-]hours:minutes:seconds`` or ``minutes:seconds``; None for one without an end."""
    days, _, clock = text.rpartition("-")
    fields = clock.split(":")
    if not all(field.isdigit() for field in fields) or not 2 <= len(fields) <= 3:
        return None
    total = 0
    for field in fields:
        total = total * 60 + int(field)
    return total + 86_400 * int(days or 0)


def _reasons(directives: Mapping[str, Any], partition: Partition) -> Iterator[str]:
    where, nodes = f"partition {partition.name}", int(str(directives.get("nodes", 1)).partition("-")[0])
    if partition.state != "up":
        yield f"{where} is {partition.state}, and no job starts there before an administrator opens it"
    if (there := sum(kind.count for kind in partition.nodes)) < nodes:
        yield f"{where} has {there} nodes, and the job asks for {nodes}"
    if partition.most_nodes is not None and partition.most_nodes < nodes:
        yield f"{where} gives a job {partition.most_nodes} nodes at most, and it asks for {nodes}"
    time = seconds(str(directives.get("time", "")))
    if None not in (time, partition.time_s) and (time or 0) > (partition.time_s or 0):
        yield f"{where} allows {clock(partition.time_s or 0)}, and the job asks for {clock(time or 0)}"
    yield from _too_much(where, directives, partition.nodes)


def _too_much(where: str, directives: Mapping[str, Any], nodes: Iterable[Nodes]) -> Iterator[str]:
    """What no node of the partition has."""
    kinds = list(nodes)
    if asked := _asked_gpus(directives):
        kind, count = next(iter(asked.items()))
        there = sorted({name for one in kinds for name in one.gpus if name})
        most = max((one.gpus.get(kind, 0) if kind else sum(one.gpus.values()) for one in kinds), default=0)
        if kind and kind not in there:
            yield f"no node of {where} has GPUs of type {kind}: there are {', '.join(there) or 'none'}"
        elif most < count:
            yield f"no node of {where} has {count} GPUs: {most} at most"
    for what, wanted, most in (
        ("CPUs", int(directives.get("cpus-per-task", 0)), max((one.cpus for one in kinds), default=0)),
        ("MB of memory", _megabytes(str(directives.get("mem", 0))), max((one.memory_mb for one in kinds), default=0)),
    ):
        if wanted > most:
            yield f"no node of {where} has {wanted} {what}: {most} at most"


def clock(time_s: int) -> str:
    """``1-02:30:00``, ``02:30:00``."""
    days, rest = divmod(time_s, 86_400)
    return f"{f'{days}-' if days else ''}{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"


def _asked_gpus(directives: Mapping[str, Any]) -> dict[str, int]:
    if "gpus-per-node" in directives:
        return _gpus(f"gpu:{directives['gpus-per-node']}")
    return _gpus(str(directives.get("gres", "")))


def _gpus(gres: str) -> dict[str, int]:
    """GPUs by type: ``gpu:a100:2(S:0-1),gpu:2,nic:1`` has two a100 and two without a type."""
    return {match["kind"] or "": int(match["count"] or 1) for match in _GPU.finditer(gres)}


def _megabytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([MGT]?)", text)
    return int(match[1]) * _MEMORY[match[2]] if match else 0


def _number(text: str) -> int:
    """sinfo writes 64+ where the nodes of a line differ."""
    return int(re.sub(r"\D", "", text) or 0)
