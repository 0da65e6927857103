"""What Linux tells of this machine: processors, memory, disks. Cheap reads of /proc and /sys."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Memory:
    """Mebibytes."""

    total: int
    available: int
    used: int
    """By this job's control group where it has one, else by the machine; without copies of files."""
    limit: int
    """Of the job where it has one, else the machine's size."""


@dataclass(frozen=True)
class Disk:
    """A file system."""

    size_mb: int
    free_mb: int
    """For this user."""
    free_inodes: int | None
    """None where the file system has no such limit."""


@dataclass(frozen=True)
class CpuTimes:
    """Of the processors that this process may use, since the start of the machine, in ticks."""

    busy: int
    total: int

    def used_since(self, before: CpuTimes) -> float | None:
        """The busy share of the time in between, 0 to 1; None where no time has passed."""
        passed = self.total - before.total
        return round((self.busy - before.busy) / passed, 3) if passed > 0 else None


def cpu_times() -> CpuTimes:
    """The processors' times up to now."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *rest = line.split()
        if name in mine:
            ticks = [int(word) for word in rest[:8]]  # those of guests are counted in user and nice already
            total += sum(ticks)
            busy += sum(ticks) - ticks[3] - ticks[4]  # idle, waiting for a disk
    return CpuTimes(busy, total)


def memory() -> Memory:
    """The machine's memory and this job's share of it."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(fields[name].split()[0]) // 1024 for name in ("MemTotal", "MemAvailable"))
    machine = (total - available, total)
    used, limit = min([machine, *_limits()], key=lambda pair: pair[1])
    return Memory(total, available, used, limit)


_NAMES = {"": ("memory.current", "memory.max"), "memory": ("memory.usage_in_bytes", "memory.limit_in_bytes")}
"""Of control groups, version 2 and 1."""


def _limits() -> Iterator[tuple[int, int]]:
    """Use and limit of this process's control groups and of those around them, mebibytes."""
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, kind, place = line.split(":", 2)
            if kind in _NAMES:
                root = _GROUPS / kind
                for group in (root / place.lstrip("/"), *(root / place.lstrip("/")).parents):
                    if group.is_relative_to(root):
                        yield from _limit(group, *_NAMES[kind])


def _limit(group: Path, used: str, limit: str) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError, ValueError):  # "max" is no number, and no limit
        yield (int((group / used).read_text()) - _cache(group)) // MIB, int((group / limit).read_text()) // MIB


def _cache(group: Path) -> int:
    """Bytes of a group's use that are copies of files, which the kernel gives up when memory is short.

    A job that reads its data fills its limit with them and is in no danger. Version 1 counts the groups below in
    ``total_`` only.
    """
    try:
        pairs = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    prefix = "total_" if "total_active_file" in pairs else ""
    return sum(int(pairs.get(f"{prefix}{name}", 0)) for name in ("active_file", "inactive_file"))


def oom_kills() -> int:
    """How often the kernel has killed a process of this process's control group for want of memory, so far."""
    with contextlib.suppress(OSError):
        return sum(_oom_kills(line) for line in _OWN_GROUPS.read_text().splitlines())
    return 0


_OOM_KILLS = {"": "memory.events", "memory": "memory.oom_control"}
"""Of control groups, version 2 and 1: files with a line ``oom_kill N``."""


def _oom_kills(group: str) -> int:
    _, kind, place = group.split(":", 2)
    if kind in _OOM_KILLS:
        with contextlib.suppress(OSError, ValueError):
            lines = (_GROUPS / kind / place.lstrip("/") / _OOM_KILLS[kind]).read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return 0


def disk(path: Path) -> Disk:
    """The file system that a path is on.

    Raises:
        OSError: there is no such path, or the file system does not answer.
    """
    found = os.statvfs(path)
    inodes = found.f_favail if found.f_files else None
    return Disk(found.f_frsize * found.f_blocks // MIB, found.f_frsize * found.f_bavail // MIB, inodes)
