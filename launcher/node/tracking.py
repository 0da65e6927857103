"""The tracker of a run: a process of its own beside the ranks, so that it can neither hang nor fail the training."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Generator

from launcher.errors import LauncherError
from launcher.node.environment import prepare
from launcher.plan.plan import Plan
from launcher.records.rundir import Attempt, RunDir

_FINISH_S = 20.0
"""How long the tracker may take to report the last metrics after the ranks have ended."""


@contextlib.contextmanager
def tracking(plan: Plan, run: RunDir, attempt: Attempt, host: str) -> Generator[None]:
    """Have metrics reported to the trackers that the plan names, while the block runs. Does nothing without any."""
    tracker = _start(plan, run, attempt, host) if plan.tracker else None
    try:
        yield
    finally:
        if tracker is not None:
            _finish(tracker)


def _start(plan: Plan, run: RunDir, attempt: Attempt, host: str) -> subprocess.Popen[bytes] | None:
    with open(attempt.path / "tracker.log", "ab") as log, contextlib.suppress(OSError, LauncherError):
        command, environment = prepare(plan, attempt, host, plan.tracker, {})
        return subprocess.Popen(
            command, cwd=run.path, env=environment, start_new_session=True, stdin=subprocess.PIPE,
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return None


def _finish(tracker: subprocess.Popen[bytes]) -> None:
    """The end of its input is what a tracker ends for: Slurm's signals come to it when they come to the ranks."""
    try:
        tracker.communicate(timeout=_FINISH_S)
    except subprocess.TimeoutExpired:
        tracker.kill()
        tracker.wait()
