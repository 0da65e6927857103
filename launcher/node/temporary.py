"""Directories on a node's own disk that end with their process; what a killed one has left, the next one removes.

Whether the process lives, a lock on a file in the directory tells: the kernel gives it up with the process, whatever
killed that, and knows no numbers that are used again. Some file systems lock for one host only, so the host's name
stands in the file, and only directories of the same host and user are touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import threading
from collections.abc import Generator
from pathlib import Path

PREFIX = "launcher-"
CLEANER = "launcher-cleaner"
"""The thread's name."""
_MARK = ".launcher"


@contextlib.contextmanager
def held(path: Path) -> Generator[Path]:
    """A new directory, whose name begins with :data:`PREFIX`, until the end; those that nobody holds are removed.

    That is done beside, for it may take long.
    """
    threading.Thread(name=CLEANER, target=_remove_left_ones, args=(path.parent,), daemon=True).start()
    mark = _held_mark(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if mark is not None:
            os.close(mark)


def _held_mark(path: Path) -> int | None:
    """A file with a lock, which gets its name last, so that nobody ever sees it without; None where there are none."""
    unnamed = path / f"{_MARK}-"
    try:
        mark = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(mark, _host())
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(path / _MARK)
        return mark
    except OSError:
        return None


def _remove_left_ones(place: Path) -> None:
    for mark in place.glob(f"{PREFIX}*/{_MARK}"):
        with contextlib.suppress(OSError), open(mark, "r+b") as file:
            if os.fstat(file.fileno()).st_uid == os.getuid() and file.read() == _host():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(mark.parent, ignore_errors=True)


def _host() -> bytes:
    return socket.gethostname().encode()
