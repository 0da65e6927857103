"""A run on this machine, now: the same node agent, as a child of the command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.records.files import write_json
from launcher.records.rundir import RunDir
from launcher.records.sweepdir import Batch, SweepDir
from launcher.submission.batch_job import agent_command

_PATIENCE_S = 0.1


class Foreground:
    """An agent on this machine, and the way to stop it."""

    def __init__(self, records: Path, code: Path, log: Path, submission: Path, **variables: str) -> None:
        inherited = os.environ.get("PYTHONPATH")
        environment = {
            **os.environ,
            **variables,
            "PYTHONPATH": f"{code}:{inherited}" if inherited else str(code),
            "LAUNCHER_FOREGROUND": str(os.getpid()),
        }
        with open(log, "ab") as output:
            self._agent = subprocess.Popen(
                agent_command(records), env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        record = {"scheduler": "local", "pid": self._agent.pid, "host": os.uname().nodename, "time": time.time()}
        write_json(submission, record)

    @classmethod
    def run(cls, run: RunDir) -> Foreground:
        """Start a run here and now."""
        return cls(run.path, run.code, run.agent_log, run.submission)

    @classmethod
    def batch(cls, sweep: SweepDir, batch: Batch, gpus: Sequence[str]) -> Foreground:
        """Start a queue of runs over these devices."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        return cls(batch.tasks, sweep.code, batch.path / "agent.log", batch.submission, **visible)

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
