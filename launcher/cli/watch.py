"""Following a run: rank 0's output, a line of progress at the bottom, the state of its job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from launcher.cli.following import require_verdict, until_over
from launcher.cli.live import LiveLine
from launcher.plan.plan import Plan
from launcher.records.files import last_json_line
from launcher.records.printed import Printed, of_rank
from launcher.records.result import read_result
from launcher.records.rundir import RunDir
from launcher.records.status import PENDING
from launcher.records.submission import submitted

_POLL_S = 0.2


class Watcher:
    """Shows a run on the terminal while it goes on."""

    def __init__(self, run: RunDir, plan: Plan, show_log: bool) -> None:
        self._run, self._plan = run, plan
        self._log = Printed(run, of_rank(0)) if show_log else None
        self._line = LiveLine()
        self._began: tuple[float, int] | None = None  # time and iteration of the first progress seen

    def update(self) -> None:
        """Show what is new."""
        new = "" if self._log is None else "".join(piece.text for piece in self._log.new())
        self._line.show(self._progress_line(), new, plain=self._log is None)

    def say(self, line: str) -> None:
        """Print a line above the progress."""
        self._line.say(line)

    def say_stopping(self) -> None:
        self.say("stopping: the ranks save and end (Ctrl-C again to stop at once)")

    def close(self) -> None:
        """Leave the last line of progress on the terminal."""
        self._line.close()

    def _progress_line(self) -> str:
        metrics = last_json_line(self._run.metrics)
        if metrics is None or "iteration" not in metrics:
            return ""
        total = self._plan.training["max_iterations"] if self._plan.training["task"]["env"] else None
        return progress_line(metrics, total, self._seconds_left(metrics, total))

    def _seconds_left(self, metrics: Mapping[str, Any], total: int | None) -> float | None:
        """From the pace since the first progress that was seen; None until there is a pace."""
        now, iteration = metrics.get("time", 0.0), metrics["iteration"]
        if self._began is None:
            self._began = (now, iteration)
        seconds, iterations = now - self._began[0], iteration - self._began[1]
        return None if total is None or iterations <= 0 else seconds / iterations * (total - iteration)


def progress_line(metrics: Mapping[str, Any], total: int | None, seconds_left: float | None) -> str:
    """One line for an iteration: how far, how good, how fast, how much longer at most."""
    parts = [f"iteration {metrics['iteration']}{f'/{total}' if total else ''}"]
    for key, label in (("return_mean", "return"), ("length_mean", "length")):
        if isinstance(metrics.get(key), (int, float)):
            parts.append(f"{label} {metrics[key]:.1f}")
    if isinstance(metrics.get("fps"), (int, float)):
        parts.append(f"{metrics['fps']:,.0f} frames/s")
    if seconds_left is not None:
        minutes, seconds = divmod(round(seconds_left), 60)
        parts.append(f"at most {minutes // 60}:{minutes % 60:02}:{seconds:02} left")
    return " · ".join(parts)


def wait_for_job(run: RunDir, plan: Plan) -> None:
    """Follow the job of a run, and those that go on with it, until the run has ended and its verdict is there.

    Raises:
        LauncherError: it ended, and no verdict came.
        KeyboardInterrupt: the user stops following; the job goes on.
    """
    watcher = Watcher(run, plan, show_log=True)
    try:
        _follow(run, watcher)
    except KeyboardInterrupt:
        watcher.close()
        print(f"job {_job_of(run)} goes on; stop it with: python -m launcher cancel {run.path}", file=sys.stderr)
        raise
    watcher.update()
    watcher.close()
    require_verdict(run)


def _job_of(run: RunDir) -> str:
    return str(submitted(run)["job_id"])


def _follow(run: RunDir, watcher: Watcher) -> None:
    said, attempts = "", 0
    for status in until_over(run, watcher.update, _POLL_S):
        attempts = _say_what_ended(run, watcher, attempts)
        if status.state == PENDING and status.detail != said:
            said = status.detail
            watcher.say(f"pending: {said}")


def _say_what_ended(run: RunDir, watcher: Watcher, seen: int) -> int:
    """Tell of attempts that another one follows; returns how many have been told of."""
    for attempt in run.attempts()[seen:]:
        verdict = read_result(attempt.verdict)
        if verdict is None or verdict.then.startswith("ended"):
            return attempt.number
        watcher.say(f"attempt {attempt.number + 1} {verdict.attempt_line()} · {verdict.then}")
        seen = attempt.number + 1
    return seen
