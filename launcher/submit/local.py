"""A run on this machine, now: the same node agent, as a child of the command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

from launcher.records.files import write_json
from launcher.records.rundir import RunDir
from launcher.submit.batch_job import agent_command

_PATIENCE_S = 0.1


class Foreground:
    """The agent of a local run, and the way to stop it."""

    def __init__(self, run: RunDir) -> None:
        inherited = os.environ.get("PYTHONPATH")
        environment = {
            **os.environ,
            "PYTHONPATH": f"{run.code}:{inherited}" if inherited else str(run.code),
            "LAUNCHER_FOREGROUND": str(os.getpid()),
        }
        with open(run.agent_log, "ab") as log:
            self._agent = subprocess.Popen(
                agent_command(run.path), env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        record = {"scheduler": "local", "pid": self._agent.pid, "host": os.uname().nodename, "time": time.time()}
        write_json(run.submission, record)

    def wait(self, meanwhile: Callable[[], None], interrupted: Callable[[], None]) -> int:
        """Wait for the agent's end; Ctrl-C asks it to save and stop, a second one to stop now.

        `meanwhile` is called several times a second, `interrupted` at the first Ctrl-C. Returns the agent's exit code.
        """
        while self._agent.poll() is None:
            try:
                meanwhile()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._agent.wait(_PATIENCE_S)
            except KeyboardInterrupt:
                self._agent.send_signal(signal.SIGINT)
                interrupted()
        meanwhile()
        return self._agent.returncode
