"""Python stacks of live processes: by faulthandler in those that have it, else by py-spy where that is installed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.node.hang.facts import Frame

SIGNAL = signal.SIGRTMAX - 4
"""What `train/site/sitecustomize.py` has faulthandler write the stacks for."""
_SETTLED_S = 0.05
_PY_SPY_S = 5.0
_THREAD = re.compile(r"(?:Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[.*\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def ask(pid: int) -> bool:
    """Have a process write its stacks; False where it has no handler, for then the signal would kill it."""
    if not _handled(pid):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, SIGNAL)
        return True
    return False


def _handled(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False


def written(file: Path, start: int, deadline: float) -> str:
    """What has been written to a file behind `start`, once it is whole or the deadline (monotonic) has passed."""
    size = start
    while time.monotonic() < deadline:
        before, size = size, _size(file)
        if size > start and size == before:
            break
        time.sleep(_SETTLED_S)
    with contextlib.suppress(OSError), open(file, "rb") as opened:
        opened.seek(start)
        return opened.read().decode(errors="replace")
    return ""


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def main_thread(text: str, ident: int | None) -> tuple[Frame, ...]:
    """The stack of the thread with this identity in what faulthandler wrote; without one of the last, which is main."""
    threads = dict(_threads(text))
    if ident is not None and ident in threads:
        return threads[ident]
    return list(threads.values())[-1] if threads else ()


def _threads(text: str) -> Iterator[tuple[int, tuple[Frame, ...]]]:
    headers = list(_THREAD.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends):
        frames = _FRAME.finditer(text, header.end(), end)
        yield int(header["id"], 16), tuple(Frame(one["function"], one["file"], int(one["line"])) for one in frames)


def by_py_spy(pid: int) -> tuple[Frame, ...]:
    """The main thread's stack, without the process's help, even while it is stopped; empty where that cannot be."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.is_file() else shutil.which("py-spy")
    if program is None:
        return ()
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PY_SPY_S, check=False
        )  # fmt: skip
        threads = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ()
    return next((_frames(thread) for thread in threads if thread.get("os_thread_id") == pid), ())


def _frames(thread: Mapping[str, list[Mapping[str, object]]]) -> tuple[Frame, ...]:
    return tuple(Frame(str(one["name"]), str(one["filename"]), int(str(one["line"]))) for one in thread["frames"])
