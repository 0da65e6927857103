"""A Python that has imported and used the launcher already: each command runs in a fork of it, in a third of the time.

The fork has the arguments, environment, directory and files of the command, and the launcher's own ``main`` in it.
Commands whose environment concerns Python itself, or the language, need a Python of their own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_MODULES = (
    "launcher.cli.start",
    "launcher.cli.sweep",
    "launcher.cli.status",
    "launcher.submission.script",
    "hydra.core.override_parser.overrides_parser",
)
_OF_PYTHON = ("PYTHON", "LC_", "LANG")


def suits(extra: Mapping[str, str]) -> bool:
    """Whether a command with these variables may run in a fork."""
    return not any(name.startswith(_OF_PYTHON) for name in extra)


class Warm:
    """The process that is forked. It starts with the first command, and anew after one that took too long."""

    def __init__(self, start: Callable[..., subprocess.Popen[str]]) -> None:
        """`start` is subprocess.Popen, or what starts a command elsewhere in the same way."""
        self._start, self._process = start, None
        self._one_at_a_time = threading.Lock()

    def run(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as subprocess.run does, with what it printed.

        Raises:
            subprocess.TimeoutExpired: it took longer.
        """
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            request = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "out": out.name, "err": err.name}
            code = self._ask(request, timeout)
            said = [Path(file.name).read_text() for file in (out, err)]
        return subprocess.CompletedProcess(list(arguments), code, *said)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _ask(self, request: Mapping[str, Any], timeout: float) -> int:
        with self._one_at_a_time, selectors.DefaultSelector() as selector:
            stdin, stdout = self._pipes()
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                self.stop()
                raise subprocess.TimeoutExpired(list(request["arguments"]), timeout)
            return int(stdout.readline())

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._process is None:
            command, pipe = [sys.executable, "-m", "tests.warm"], subprocess.PIPE
            self._process = self._start(command, stdin=pipe, stdout=pipe)
        assert self._process.stdin and self._process.stdout
        return self._process.stdin, self._process.stdout


def _serve() -> int:
    """Answer each request with the exit code of its fork; in a fork, be the command."""
    from launcher.cli.main import main

    _warm_up()
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
            return main()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


def _warm_up() -> None:
    """Do what every command would do first: import, and have Hydra find its plugins and fill the parser's caches."""
    from launcher.config.compose import compose

    for module in _MODULES:
        importlib.import_module(module)
    compose(["cluster=a100x2", "seed=1"])
    gc.collect()
    gc.freeze()  # or a fork's first collection would copy every page


def _become(request: Mapping[str, Any]) -> None:
    opened = (os.open(os.devnull, os.O_RDONLY), *(os.open(request[name], os.O_WRONLY) for name in ("out", "err")))
    for number, descriptor in enumerate(opened):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv[1:] = request["arguments"]
    sys.path[0] = request["cwd"]


if __name__ == "__main__":
    sys.exit(_serve())
