"""The agent's side of a torchrun that waits for the next attempt: see :mod:`launcher.train.standby`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence

_ANSWERS_IN_S = 2.0
"""A process that waits does so at once; the agent does nothing else meanwhile."""
_WORDS = 4096


class Adopted:
    """A child that this process did not start: what is needed here of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs.

        Raises:
            ChildProcessError: it is no child of this process.
        """
        return self._look(os.WNOHANG)

    def wait(self) -> int:
        code = self._look(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _look(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class Standby:
    """A node's place for a process that waits to be the next torchrun; each torchrun of a run leaves one there."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._ours, self._theirs = socket.socketpair()

    @property
    def descriptor(self) -> int:
        """Of the end of the socket that torchrun gets."""
        return self._theirs.fileno()

    def take(self, command: Sequence[str], environment: Mapping[str, str], log: str) -> Adopted | None:
        """Have the one that waits become torchrun; None where none does."""
        waiting = self._waiting()
        if waiting is None:
            return None
        self._ours.settimeout(_ANSWERS_IN_S)
        try:
            self._ours.sendall(json.dumps([list(command), dict(environment), log]).encode() + b"\n")
            if self._ours.recv(_WORDS):
                return waiting
        except OSError:
            pass
        waiting.kill()
        self._open()  # half an order may be in the old one
        return None

    def _waiting(self) -> Adopted | None:
        """The last one that has said that it waits, if it still does."""
        said = b""
        self._ours.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            said = self._ours.recv(_WORDS)
        if not said:
            return None
        last = Adopted(int(said.split()[-1]))
        try:
            return last if last.poll() is None else None
        except ChildProcessError:  # torchrun has taken it back
            return None
