"""What a sandbox consists of outside its directory: processes, and namespaces with the mounts and networks in them.

For tests that nothing is left. They look only for what belongs to one sandbox: others may run at the same time.
"""

from __future__ import annotations

import os
from pathlib import Path


def processes_of(root: Path) -> set[int]:
    """Processes that were started with this sandbox's configuration."""
    mark = f"SLURM_CONF={root}/".encode()
    return {pid for pid in _pids() if mark in _read(pid, "environ")}


def namespaces_of(pids: set[int]) -> set[str]:
    """Their namespaces, except ours."""
    return {name for pid in pids for name in _namespaces(pid)} - _namespaces(os.getpid())


def left_of(root: Path, namespaces: set[str]) -> list[str]:
    """Everything that is still there."""
    members = [f"process {pid} in {ns}" for pid in _pids() for ns in _namespaces(pid) & namespaces]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line]
    return [*members, *mounts, *(str(path) for path in [root] if path.exists())]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def _namespaces(pid: int) -> set[str]:
    try:
        return {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("pid", "mnt", "net", "uts")}
    except OSError:
        return set()
