"""Linux namespaces and mounts: the few system calls that Python 3.10 lacks, and what the sandbox needs of them."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager

NEW_MOUNT = 0x0002_0000
NEW_UTS = 0x0400_0000
NEW_PID = 0x2000_0000
NEW_NET = 0x4000_0000

_NOSUID, _NODEV, _NOEXEC = 0x2, 0x4, 0x8
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x4_0000

MEMORY_GROUPS = "/sys/fs/cgroup/memory"

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces of the kinds in `flags` (NEW_PID: only its next children)."""
    _check(_libc.unshare(flags), "unshare")


@contextmanager
def children_in(pid_namespace: int | None) -> Generator[None, None, None]:
    """Processes started in this block, by this thread, live in that pid namespace (None: the first makes a new one).

    They remain children of this process, under the pid that this process sees: a signal or a wait needs nobody in
    between, as it does with `nsenter --pid` and `unshare --fork`, which fork and keep the outer process.
    """
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        if pid_namespace is None:
            unshare(NEW_PID)
        else:
            _set_namespace(pid_namespace, NEW_PID)
        yield
    finally:
        _set_namespace(own, NEW_PID)
        os.close(own)


def own_machine(host: str) -> None:
    """Host name, /proc, /sys and /dev/shm as on a machine of one's own. Needs fresh mount, net and uts namespaces."""
    socket.sethostname(host)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    _mount("sysfs", "/sys", "sysfs", _NOSUID | _NODEV | _NOEXEC)  # /sys/class/net of these interfaces
    mount_tmpfs("/dev/shm", "mode=1777")


def mount_tmpfs(target: str, options: str) -> None:
    """An empty file system in memory. Device nodes work on it."""
    _mount("tmpfs", target, "tmpfs", _NOSUID, options)


def mount_memory_groups() -> None:
    """The kernel's control groups for memory, of version 1, where most machines have them."""
    mount_tmpfs("/sys/fs/cgroup", "mode=755")
    os.mkdir(MEMORY_GROUPS)
    _mount("cgroup", MEMORY_GROUPS, "cgroup", _NOSUID | _NODEV | _NOEXEC, "memory")


def mount_over(source: str, target: str) -> None:
    """Let the file `source` appear as `target`."""
    _mount(source, target, None, _BIND)


def _set_namespace(descriptor: int, kind: int) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3])
    _check(result, f"mount {source or ''} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
