"""Commands on one machine of the sandbox: the login node, or a node."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import namespaces
from .errors import SandboxError

Command = Sequence["str | os.PathLike[str]"]

_NSENTER = {"mnt": "--mount", "net": "--net", "uts": "--uts"}
NAMESPACES = ("pid", *_NSENTER)
"""Kinds of namespaces that make a machine, as named below /proc/PID/ns."""


def reap(started: set[subprocess.Popen[str]]) -> None:
    """Collect the commands that have ended: a pid namespace does not end before the parents of all have done so."""
    for process in list(started):
        if process.poll() is not None:
            started.discard(process)


class Machine:
    def __init__(self, descriptors: Sequence[int], started: set[subprocess.Popen[str]]) -> None:
        """`descriptors`: the machine's namespaces, open files in the order of NAMESPACES. `started`: where to note the
        commands that run."""
        self._namespaces = dict(zip(NAMESPACES, descriptors, strict=True))
        self._started = started

    def popen(
        self, command: Command, cwd: Path | str | None, env: Mapping[str, str], options: dict[str, Any]
    ) -> subprocess.Popen[str]:
        """Start a command. The Popen's pid is the command's own: signals and exit status are exact."""
        # nsenter enters all but the pid namespace, and becomes the command; `children_in` does that one, without a
        # process in between.
        files = f"/proc/{os.getpid()}/fd"
        enter = [f"{option}={files}/{self._namespaces[kind]}" for kind, option in _NSENTER.items()]
        full = ["/usr/bin/nsenter", *enter, f"--wdns={os.path.abspath(cwd or '.')}", "--", *command]
        # In a thread, because signal handlers do not raise there: between the start and the note of it, an exception
        # would leave a process that nobody collects, and a sandbox that cannot end.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._start, full, env, options).result()

    def run(
        self, command: Command, cwd: Path | str | None, env: Mapping[str, str], timeout: float | None, check: bool
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as subprocess.run does; after the timeout its whole session is killed."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.popen(command, cwd, env, {**pipes, "start_new_session": True}) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        done = subprocess.CompletedProcess(command, process.returncode, output, errors)
        if check:
            done.check_returncode()
        return done

    def _start(self, command: Command, env: Mapping[str, str], options: dict[str, Any]) -> subprocess.Popen[str]:
        reap(self._started)
        try:
            with namespaces.children_in(self._namespaces["pid"]):
                process = subprocess.Popen(command, env=env, text=True, **options)
        except OSError as error:
            if error.errno == errno.ENOMEM:  # what the kernel says of a pid namespace whose PID 1 is gone
                raise SandboxError("this machine of the sandbox has ended") from None
            raise
        self._started.add(process)
        return process

    def close(self) -> None:
        for descriptor in self._namespaces.values():
            os.close(descriptor)
        self._namespaces.clear()
