"""PID 1 of a pid namespace: starts daemons, reaps orphans, answers requests. The kernel kills the rest when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .channel import Channel, Closed

Answer = tuple[dict[str, Any], list[int]]
Handlers = Mapping[str, Callable[[dict[str, Any]], Answer | None]]


class SiteError(Exception):
    """Something did not come up; the text says what, with the end of its log."""


class Init:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._ended: dict[int, int] = {}

    def spawn(self, command: Sequence[str], log: Path) -> int:
        """Start a daemon and return its pid. What it prints goes to the log."""
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawnp(command[0], list(command), os.environ, file_actions=files, setsid=True)

    def run(self, command: Sequence[str], text: str = "") -> None:
        """A short command, to its end; it must succeed."""
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SiteError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")

    def exit_status(self, pid: int) -> int | None:
        """None while that process runs."""
        self.reap()
        return self._ended.get(pid)

    def wait_for(
        self, ready: Callable[[], bool], what: str, seconds: float = 60, watch: Mapping[int, Path] | None = None
    ) -> None:
        """Until `ready`. One of the watched processes ending first is an error, told with the end of its log."""
        watched = watch or {}
        deadline = time.monotonic() + seconds
        while not ready():
            for pid, log in watched.items():
                if (status := self.exit_status(pid)) is not None:
                    raise SiteError(f"{what}: ended with {os.waitstatus_to_exitcode(status)}\n{tail(log)}")
            if time.monotonic() > deadline:
                logs = "\n".join(tail(log) for log in watched.values())
                raise SiteError(f"{what}: not there after {seconds:.0f} s\n{logs}")
            self.pause(0.01)

    def wait_for_end(self, pid: int, what: str, log: Path) -> None:
        """Until that process has ended; it must succeed."""
        self.wait_for(lambda: self.exit_status(pid) is not None, what)
        if self._ended[pid]:
            raise SiteError(f"{what}: failed\n{tail(log)}")

    def pause(self, seconds: float) -> None:
        """A moment, unless the other end goes away. (It sends nothing while it waits for an answer.)"""
        if self.channel.readable(seconds):
            raise Closed

    def reap(self) -> None:
        """Collect what has ended, orphans of others included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended[pid] = status

    def serve(self, handlers: Handlers) -> NoReturn:
        """Answer requests until the other end is gone, which raises Closed."""
        while True:
            if not self.channel.readable(0.2):
                self.reap()
                continue
            request, _ = self.channel.receive()
            try:
                answer, descriptors = handlers[request["verb"]](request) or ({}, [])
            except (SiteError, OSError) as error:
                answer, descriptors = {"error": str(error)}, []
            self.channel.send(answer, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def kill_all(self) -> None:
        """Kill everything in this pid namespace, and wait until all of it is gone."""
        try:
            os.kill(-1, signal.SIGKILL)
            while True:
                os.wait()
        except (ProcessLookupError, ChildProcessError):
            pass


def tail(log: Path, lines: int = 12) -> str:
    """The end of a log, with its name."""
    try:
        text = log.read_text(errors="replace").strip()
    except FileNotFoundError:
        text = ""
    return f"{log.name}: " + "\n  ".join(text.splitlines()[-lines:] or ["(nothing in it)"])
