"""Linux's means to know and to end processes that are not our children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs: ranks outlive a torchrun that dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int, which: signal.Signals = signal.SIGTERM) -> None:
    """Get a signal when the parent process dies, however it dies."""
    _prctl(_PR_SET_PDEATHSIG, which)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), which)


def children(pid: int) -> Iterator[int]:
    """The children of a process, of all its threads."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from map(int, task.read_text().split())


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty when it is gone or another user's."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)


def connected(pid: int) -> bool:
    """Whether a process, or one below it, has a TCP connection to anybody; False too where that cannot be seen."""
    try:
        sockets = {inode for one in _family(pid) for inode in _sockets(one)}
        return bool(sockets) and not sockets.isdisjoint(_established(pid))  # the tables of a busy node are long
    except OSError:  # it has just ended
        return False


def _family(pid: int) -> Iterator[int]:
    yield pid
    for child in children(pid):
        yield from _family(child)


def _sockets(pid: int) -> Iterator[str]:
    """The inodes of a process's sockets."""
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(descriptor).partition(":[")
            if kind == "socket":
                yield inode.rstrip("]")


def _established(pid: int) -> Iterator[str]:
    """The inodes of the established connections in a process's network; see proc_net_tcp of the kernel."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}") as rows:
            yield from (row[9] for row in map(str.split, rows) if row[3] == "01")


async def ended(pid: int) -> float:
    """Wait for the end of a process, of any parent; returns the time of its end (seconds since the epoch)."""
    import asyncio  # not for the small programs that only want to end with their parent

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return time.time()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[float] = loop.create_future()
    loop.add_reader(descriptor, lambda: over.done() or over.set_result(time.time()))
    try:
        return await over
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def kill(pids: Iterable[int], which: signal.Signals) -> None:
    """Signal processes; those that are gone are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, which)


def kill_groups(pids: Iterable[int], which: signal.Signals) -> None:
    """Signal the process groups that these processes lead: a rank with its data loaders."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, which)


def end_descendants() -> None:
    """Kill and reap all that is left below this process. For the moment before it ends itself."""
    while left := set(children(os.getpid())):
        kill(left, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
