"""Following a run to its end, over requeues and new jobs, whoever can be asked meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from launcher.cli.statuses import statuses_of
from launcher.errors import LauncherError
from launcher.records.rundir import RunDir
from launcher.records.status import UNKNOWN, VERDICT_S, Status, last_words
from launcher.records.submission import submitted
from launcher.slurm.queue import is_end

_ASK_S = 2.0


def until_over(run: RunDir, look: Callable[[], object] = lambda: None, look_s: float = 0.3) -> Iterator[Status]:
    """What Slurm and the records say of a run, every two seconds, until it has ended for good.

    Args:
        run: it.
        look: called in between, every `look_s` seconds.
        look_s: as said.
    """
    gone_since: float | None = None
    while True:
        (status,) = statuses_of([run])
        gone_since = None if _goes_on(run, status) else gone_since or time.monotonic()
        late = submitted(run).get("scheduler") == "slurm" and not run.result.exists()
        if gone_since is not None and time.monotonic() - gone_since >= (VERDICT_S if late else 0.0):
            return
        yield status
        until = time.monotonic() + _ASK_S
        while time.monotonic() < until and (gone_since is None or not run.result.exists()):
            look()
            time.sleep(look_s)


def _goes_on(run: RunDir, status: Status) -> bool:
    """Of a run of which Slurm, or its machine, cannot be asked just now, only the verdict tells.

    A run whose verdict has yet to be seen does not: else that would be waited for here once more.
    """
    active = status.active and not is_end(status.slurm_state)
    return active or (status.state == UNKNOWN and bool(submitted(run)) and not run.result.exists())


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
