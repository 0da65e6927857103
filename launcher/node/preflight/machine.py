"""Processors, memory, shared memory, limits, the clock."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.node import host
from launcher.node.preflight.topic import Topic
from launcher.node.preflight.wanted import Wanted
from launcher.records.preflight import CLOCK, CLOCK_TOLERANCE_S, WARNING, Check, Facts, Finding

_LEAST_MEMORY_MB = 512
"""Of a rank: torch alone takes half of it."""
_LEAST_SHM_MB = 128
"""Of a rank: NCCL and data loaders. Containers often come with 64 MiB for all."""
_LEAST_FILES = 1024
_LEAST_LOCKED_MB = 1024

CPUS = Check(
    "cpu-mask", "fewer CPUs than ranks, or than asked for",
    "ask for more (cluster.cpus_per_gpu), or look at srun's --cpus-per-task and --cpu-bind", (WARNING,),
)  # fmt: skip
MEMORY = Check(
    "memory", "less free memory than was asked for, or than the ranks need to start",
    "ask for less or more (cluster.mem_per_gpu), or end what uses it", (WARNING,),
)  # fmt: skip
SHM = Check(
    "shm", "little room in /dev/shm, which NCCL and data loaders need",
    "give the container more (--shm-size, --ipc=host), or have a stale file there removed", (WARNING,),
)  # fmt: skip
FILES = Check(
    "open-files", "a low limit of open files (ulimit -n)", "raise it with a line in cluster.setup: ulimit -n 65536",
    (WARNING,),
)  # fmt: skip
LOCKED = Check(
    "locked-memory", "a low limit of locked memory (ulimit -l) on a node with InfiniBand",
    "have the administrators set LimitMEMLOCK=infinity for slurmd; NCCL cannot use InfiniBand without", (WARNING,),
)  # fmt: skip


def _look(wanted: Wanted, _: float) -> dict[str, Any]:
    memory = host.memory()
    shm = host.disk(Path("/dev/shm"))
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_total_mb": memory.total,
        "memory_free_mb": min(memory.available, memory.limit - memory.used),
        "shm_mb": shm.size_mb,
        "shm_free_mb": shm.free_mb,
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "locked_mb": _limit(resource.RLIMIT_MEMLOCK, host.MIB),
        "adapters": adapters(),
    }


def _limit(which: int, unit: int = 1) -> int | None:
    """The limit in force, or None where there is none."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft // unit


def adapters() -> list[str]:
    """Names of InfiniBand and RoCE adapters."""
    place = Path("/sys/class/infiniband")
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def _judge(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    seen, name = facts["machine"], wanted.host
    least = max(wanted.ranks, wanted.cpus or 0)
    if seen["cpus"] < least:
        yield CPUS.finding(name, f"{seen['cpus']} CPUs for {wanted.ranks} ranks, and {least} are asked for")
    needed = max(wanted.memory_mb or 0, _LEAST_MEMORY_MB * wanted.ranks)
    if seen["memory_free_mb"] < needed:
        yield MEMORY.finding(name, f"{seen['memory_free_mb']} MiB of memory are free, and {needed} MiB are needed")
    if seen["shm_free_mb"] < _LEAST_SHM_MB * wanted.ranks:
        has = f"{seen['shm_free_mb']} of {seen['shm_mb']} MiB are free in /dev/shm"
        yield SHM.finding(name, f"{has}, little for {wanted.ranks} ranks")
    if seen["open_files"] is not None and seen["open_files"] < _LEAST_FILES:
        yield FILES.finding(name, f"a process may open {seen['open_files']} files")
    if seen["adapters"] and seen["locked_mb"] is not None and seen["locked_mb"] < _LEAST_LOCKED_MB:
        yield LOCKED.finding(name, f"a process may lock {seen['locked_mb']} MiB, and {seen['adapters'][0]} needs more")


TOPIC = Topic("machine", _look, _judge, checks=(CPUS, MEMORY, SHM, FILES, LOCKED))


def _look_at_clock(wanted: Wanted, _: float) -> dict[str, Any]:
    now = time.time()
    return {"time": now, "offset_s": None if wanted.leader_time is None else now - wanted.leader_time}


def _judge_clock(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    offset = facts["clock"]["offset_s"]
    if offset is not None and abs(offset) > CLOCK_TOLERANCE_S:
        yield CLOCK.finding(wanted.host, f"the clock is {offset:+.0f} s off that of {wanted.master}")


CLOCK_TOPIC = Topic("clock", _look_at_clock, _judge_clock)
