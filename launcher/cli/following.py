"""Following runs to their end, over requeues and new jobs, whoever can be asked meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from launcher.cli.statuses import statuses_of
from launcher.errors import LauncherError
from launcher.records.rundir import RunDir
from launcher.records.status import UNKNOWN, VERDICT_S, Status, last_words
from launcher.records.submission import submitted
from launcher.slurm.queue import Job

_ASK_S = 2.0


class Following:
    """Runs that are looked at again and again, until each has ended for good.

    One whose job is over and left no verdict may show it, or the job that goes on, for a while yet: file systems show
    files late. That time is counted once, from the job's end on.
    """

    def __init__(self, runs: Sequence[RunDir]) -> None:
        self.open = list(runs)
        """Those that have not ended."""
        self.ended: list[Status] = []
        self._over_since: dict[RunDir, float] = {}
        """When the job of an open run was first seen to be over."""

    def look(self) -> list[Status]:
        """What Slurm and the records say of the runs that have not ended; those that just have are open no more."""
        statuses = dict(zip(self.open, statuses_of(self.open)))
        ended = {run: status for run, status in statuses.items() if self._has_ended(run, status)}
        self.open = [run for run in self.open if run not in ended]
        self.ended += ended.values()
        return [status for run, status in statuses.items() if run not in ended]

    @property
    def late_verdict(self) -> bool:
        """Whether one that was waited for has come since the last look."""
        return any(run.result.exists() for run in self._over_since.keys() & set(self.open))

    def _has_ended(self, run: RunDir, status: Status) -> bool:
        goes_on = _goes_on(run, status)
        if goes_on and not Job(status.slurm_state).ended:
            self._over_since.pop(run, None)
            return False
        over_s = time.monotonic() - self._over_since.setdefault(run, time.monotonic())
        late = submitted(run).get("scheduler") == "slurm" and not run.result.exists()
        return not goes_on and (over_s >= VERDICT_S or not late)


def _goes_on(run: RunDir, status: Status) -> bool:
    """Of a run of which Slurm, or its machine, cannot be asked just now, only the verdict tells."""
    if status.active or status.state != UNKNOWN or run.result.exists():
        return status.active
    record = submitted(run)
    return bool(record) and record.get("host") != os.uname().nodename


def until_all_over(
    runs: Sequence[RunDir], look: Callable[[], object] = lambda: None, look_s: float = 0.3
) -> Iterator[list[Status]]:
    """What Slurm and the records say of the runs that go on, every two seconds, until all have ended for good.

    Args:
        runs: they.
        look: called in between, every `look_s` seconds.
        look_s: as said.
    """
    following = Following(runs)
    while statuses := following.look():
        yield statuses
        until = time.monotonic() + _ASK_S
        while time.monotonic() < until and not following.late_verdict:
            look()
            time.sleep(look_s)


def until_over(run: RunDir, look: Callable[[], object] = lambda: None, look_s: float = 0.3) -> Iterator[Status]:
    """The same of one run."""
    for (status,) in until_all_over([run], look, look_s):
        yield status


def require_verdict(run: RunDir) -> None:
    """Fail where a run has ended without one.

    Raises:
        LauncherError: what is known of its end.
    """
    if run.result.exists():
        return
    job_id = submitted(run).get("job_id")
    who = f"job {job_id}" if job_id else f"run {run.run_id}"
    what = "ended without a verdict" if run.attempts() else "ended before any rank started"
    words = f" ({said})" if (said := last_words(run)) else ""
    where = f"the output of its script is in {run.slurm}" if job_id else f"the agent's output is in {run.agent_log}"
    raise LauncherError(f"failed: {who} {what}{words} · {where}")
