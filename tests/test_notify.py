"""``notify``: whoever wants to know of the end of a run is told, once, and it costs the run nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.node import notice
from launcher.node.notice import tell
from launcher.plan.plan import Plan
from launcher.records.result import COMPLETED, FAILED, Result
from launcher.records.rundir import Attempt, RunDir
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_plan import plan_of
from tests.test_slurm import launch_on

CRASH = Result(FAILED, "crash", "ValueError: a < b & c", rank=3, host="gpu01", exit_code=1, iteration=7, attempts=3)
DONE = Result(COMPLETED, "solved", iteration=9, metrics={"return_mean": 475.5, "loss": float("nan")})


class Hook:
    """A webhook on this machine."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.answers = [200]
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0])
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/services/SECRET"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Generator[Hook]:
    hook = Hook()
    monkeypatch.setenv("MY_HOOK", hook.address)
    yield hook
    hook.server.shutdown()
    hook.server.server_close()


End = Callable[..., str]


@pytest.fixture
def end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> End:
    """Ends a run with these settings; returns what the agent printed."""

    def end(*settings: str, result: Result = CRASH, attempt: Attempt | None = None) -> str:
        plan = dataclasses.replace(plan_of(*settings), run_dir=str(tmp_path / "a run"), submit_dir=str(tmp_path))
        assert Plan.from_json(plan.to_json()) == plan
        run = RunDir(Path(plan.run_dir))
        attempt = attempt or run.claim_attempt()
        run.plan.write_text(plan.to_json())
        result.write(run.result)
        tell(plan, run, attempt, result)
        return capfd.readouterr().out

    return end


def test_a_webhook_gets_the_facts_as_json(hook: Hook, end: End) -> None:
    assert end("notify.webhook=MY_HOOK", 'name="it\'s mine"', result=DONE) == ""
    (said,) = hook.got
    assert (said["outcome"], said["cause"], said["name"]) == ("completed", "solved", "it's mine")
    assert said["metrics"] == {"return_mean": 475.5}  # no NaN in JSON
    assert said["text"] == DONE.line() and said["run_dir"].endswith("a run")


def test_slack_gets_a_text_in_which_nothing_is_taken_for_its_own_signs(hook: Hook, end: End) -> None:
    end("notify.webhook=MY_HOOK", "notify.style=slack", "name=mine")
    (said,) = hook.got
    assert said.keys() == {"text"}
    assert said["text"].startswith("*mine* failed: rank 3 on gpu01 exited with code 1 (ValueError: a &lt; b &amp; c)")


def test_a_run_is_told_of_once_and_again_when_a_person_has_started_it_again(
    hook: Hook, end: End, tmp_path: Path
) -> None:
    first, second = (RunDir(tmp_path / "a run").claim_attempt() for _ in range(2))
    for attempt in (first, first, second):  # the agent, the batch script's last act, and after a `resume`
        end("notify.webhook=MY_HOOK", attempt=attempt)
    assert len(hook.got) == 2


def test_of_failures_only(hook: Hook, end: End) -> None:
    settings = ("notify.webhook=MY_HOOK", "notify.when=failure")
    end(*settings, result=DONE)
    assert not hook.got
    end(*settings)
    assert hook.got


def test_a_webhook_that_fails_once_is_asked_again_and_then_costs_a_warning(hook: Hook, end: End) -> None:
    hook.answers = [500, 200]
    assert end("notify.webhook=MY_HOOK") == "" and len(hook.got) == 2
    hook.answers = [404]
    said = end("notify.webhook=MY_HOOK")
    assert said == "[launcher] warning: a notice was not taken by the webhook in MY_HOOK: it answered 404\n"


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        (None, "MY_HOOK is not set on the node"),
        ("hooks.lab/SECRET", "MY_HOOK holds no http address"),
        ("http://127.0.0.1:1/SECRET", "Connection refused"),
        ("http://127.0.0.1:1/SECRET x", "InvalidURL"),
    ],
)
def test_whatever_is_wrong_with_the_address_is_said_without_it(
    end: End, monkeypatch: pytest.MonkeyPatch, address: str | None, answer: str
) -> None:
    if address is not None:
        monkeypatch.setenv("MY_HOOK", address)
    said = end("notify.webhook=MY_HOOK")
    assert answer in said and "SECRET" not in said and len(said.splitlines()) == 1


def test_a_command_gets_the_facts_where_the_run_was_submitted(end: End, tmp_path: Path) -> None:
    assert '"outcome": "failed"' in end("notify.command=[tee,told]")
    assert json.loads((tmp_path / "told").read_text())["rank"] == 3
    assert "ended with code 1" in end("notify.command=['false']")
    assert "'nix' cannot be started" in end("notify.command=[nix]")


def test_a_command_that_hangs_is_ended_with_all_it_has_started(
    end: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice, "_PATIENCE_S", 0.6)
    began = time.monotonic()
    script = tmp_path / "hang"
    script.write_text(f"#!/bin/sh\nsleep 987.{os.getpid()} &\nsleep 987.{os.getpid()}\n")
    script.chmod(0o700)
    assert "was not sent within 1 s" in end(f"notify.command=['{script}']")
    assert time.monotonic() - began < 10
    wait_until(lambda: f"sleep\0987.{os.getpid()}\0" not in "".join(command_lines()), 10)


def command_lines() -> Iterator[str]:
    """Of all processes of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


@pytest.mark.slurm
def test_slurm_mails_about_a_job_that_failed(tmp_path: Path, workdir: Path) -> None:
    (program := tmp_path / "mail").write_text('#!/bin/sh\necho "$@" >>"$0.sent"\n')
    program.chmod(0o755)
    (workdir / "fails.py").write_text("raise SystemExit(7)\n")
    words = ("task=script", "library=torchrun", "task.path=fails.py", "cluster=sandbox", "cluster.gpus_per_node=0",
             "notify.mail=me@lab", "notify.when=failure", "wait=true")  # fmt: skip
    with Sandbox.start(nodes=1, gpus=0, accounting=False, extra_conf=f"MailProg={program}") as cluster:
        assert launch_on(cluster, workdir, *words).returncode == 1
        sent = tmp_path / "mail.sent"
        text = wait_until(lambda: sent.exists() and sent.read_text(), 30)
    assert "me@lab" in text and "Failed" in text


def test_mails_are_slurms_business() -> None:
    directives = plan_of("cluster=a100x2", "notify.mail=me@lab", "notify.when=failure").directives
    assert (directives["mail-user"], directives["mail-type"]) == ("me@lab", "FAIL")
    assert "mail-user" not in plan_of("cluster=a100x2").directives
    with pytest.raises(UserError, match="are both set"):
        validate(compose(["cluster=a100x2", "notify.mail=a@b", "cluster.extra_directives.mail-type=ALL"]).config)


def test_the_agent_does_not_load_what_speaks_http() -> None:
    code = "import sys, launcher.node.agent; print({'http.client', 'urllib.request'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
