"""``python -m launcher.node.notice RUN_DIR``: tells those who want to know that a run has ended.

A process of its own, which the agent starts and, if need be, kills: names are looked up without any time limit, and
what speaks HTTP takes memory that the agent is not to have.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.plan.plan import Notices, Plan
from launcher.records.files import create_json
from launcher.records.result import FAILED, Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.records.submission import submitted

_PATIENCE_S = 20.0
"""For all of it: Slurm kills what is left of a cancelled job 30 s after its SIGTERM, by default."""
_ANSWER_S = 8.0
_AGAIN_S = 0.5
"""After which what may have been a moment's trouble is tried once more."""


def tell(plan: Plan, run: RunDir, attempt: Attempt, result: Result) -> None:
    """Send what the plan wants sent at the end of a run, once; what goes wrong is a warning in the agent's output."""
    told = plan.notices
    if told is None or (told.failures_only and result.outcome != FAILED):
        return
    with contextlib.suppress(OSError):
        if create_json(attempt.path / "notified.json", {"time": time.time()}):
            _in_a_child([sys.executable, "-m", __name__, str(run.path)])


def _in_a_child(command: list[str]) -> None:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        _warn(f"a notice was not sent within {_PATIENCE_S:.0f} s")
    with contextlib.suppress(ProcessLookupError):  # what the command has left behind
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(run_dir: str) -> int:
    """Send the notices of a run that has ended."""
    run = RunDir(Path(run_dir))
    plan, result = Plan.from_json(run.plan.read_text()), read_result(run.result)
    if plan.notices is None or result is None:
        return 0
    said = facts(plan, run, result)
    ways = [threading.Thread(target=_post, args=(plan.notices, said))] if plan.notices.webhook else []
    ways += [threading.Thread(target=_run, args=(plan, said))] if plan.notices.command else []
    for way in ways:
        way.start()
    for way in ways:
        way.join()
    return 0


def facts(plan: Plan, run: RunDir, result: Result) -> dict[str, Any]:
    """What there is to say of the end of a run. The names are part of the public contract."""
    job_id = submitted(run).get("job_id")
    return {
        "run_id": plan.run_id,
        "name": plan.name,
        "outcome": result.outcome,
        "cause": result.cause,
        "text": result.line(),
        "hint": result.hint,
        "rank": result.rank,
        "host": result.host,
        "iteration": result.iteration,
        "attempts": result.attempts,
        "metrics": {name: value for name, value in result.metrics.items() if _is_finite(value)},
        "job_id": None if job_id is None else str(job_id),
        "run_dir": str(run.path),
        "time": round(time.time(), 3),
    }


def _is_finite(value: Any) -> bool:
    """JSON has no other numbers."""
    return not isinstance(value, float) or math.isfinite(value)


def slack(said: Mapping[str, Any]) -> dict[str, str]:
    """A text as Slack's incoming webhooks take it, and Mattermost's, and Discord's with ``/slack`` after the address.

    Slack's own signs are written as its documentation of message formatting wants it.
    """
    job = f" · job {said['job_id']}" if said["job_id"] else ""
    lines = [f"*{_plain(said['name'])}* {_plain(said['text'])}", f"`{said['run_id']}`{job}", _plain(said["hint"])]
    return {"text": "\n".join(filter(None, lines))}


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _post(told: Notices, said: Mapping[str, Any]) -> None:
    address = os.environ.get(told.webhook, "")
    if not address.startswith(("https://", "http://")):
        what = "holds no http address" if address else "is not set on the node"
        _warn(f"no notice is sent: the environment variable {told.webhook} {what}")
        return
    body = json.dumps(slack(said) if told.style == "slack" else said).encode()
    problem, may_pass = _problem_of_post(address, body)
    if may_pass:
        time.sleep(_AGAIN_S)
        problem, _ = _problem_of_post(address, body)
    if problem:
        _warn(f"a notice was not taken by the webhook in {told.webhook}: {problem}")


def _problem_of_post(address: str, body: bytes) -> tuple[str, bool]:
    """What went wrong, in words that do not hold the address, for it is a secret; and whether that may pass."""
    import urllib.error
    import urllib.request

    try:
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_ANSWER_S):
            return "", False
    except urllib.error.HTTPError as error:
        return f"it answered {error.code}", error.code >= 500
    except urllib.error.URLError as error:
        return str(error.reason), True
    except Exception as error:
        return type(error).__name__, isinstance(error, OSError)


def _run(plan: Plan, said: Mapping[str, Any]) -> None:
    assert plan.notices is not None
    try:
        done = subprocess.run(
            plan.notices.command, cwd=plan.submit_dir, input=json.dumps(said), text=True, check=False
        )  # fmt: skip
    except OSError as error:
        _warn(f"no notice is sent: '{plan.notices.command[0]}' cannot be started: {error.strerror}")
        return
    if done.returncode:
        _warn(f"the notice's command '{plan.notices.command[0]}' ended with code {done.returncode}")


def _warn(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"[launcher] warning: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
