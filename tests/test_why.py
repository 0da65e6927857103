"""``why``: the story of a run, from records as the agents write them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import main
from launcher.node.hang.watch import HANG, MOVES_AGAIN, SUSPICION
from launcher.node.ranks import Failure, Report
from launcher.records import events
from launcher.records.files import append_json_line, write_json
from launcher.records.known import BY_ID
from launcher.records.result import COMPLETED, FAILED, STOPPED, Result
from launcher.records.rundir import Attempt, RunDir
from tests.agents import agent_of
from tests.conftest import ROOT

BEGAN = time.time() - 3600
HOSTS = ["gpu01", "gpu02"]
TRACEBACK = """\
iteration 34
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    policy(observations)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)
"""

Why = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run on two nodes without any attempt yet."""
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "runs" / "20261130-120000-ant-rsl_rl-aaaa")
    run.slurm.mkdir(parents=True)
    training = {"max_iterations": 500, "task": {"env": "Ant-v5"}}
    write_json(run.plan, {"training": training, "resources": {"nodes": 2, "nproc_per_node": 2}})
    write_json(run.submission, {"scheduler": "local", "host": os.uname().nodename, "pid": 2**22 + 1})
    return run


def test_every_event_that_an_agent_notes_is_told_in_words() -> None:
    code = "".join(path.read_text() for path in (ROOT / "launcher/node").rglob("*.py"))
    kinds = set(re.findall(r"\.note\(\s*\"(\w+)\"", code))
    assert len(kinds) > 8
    assert {*kinds, SUSPICION, MOVES_AGAIN, HANG} <= events.TELLERS.keys()


@pytest.fixture
def why(run: RunDir, capsys: pytest.CaptureFixture[str]) -> Why:
    def ask(*options: str) -> str:
        assert main(["why", run.run_id, *options]) == 0
        return capsys.readouterr().out

    return ask


def note(attempt: Attempt, seconds: float, event: str, **facts: Any) -> None:
    append_json_line(attempt.events, {"time": BEGAN + seconds, "event": event, **facts})


def begin(run: RunDir, hosts: list[str] = HOSTS, resume: str = "", at: float = 0.0) -> Attempt:
    attempt = run.claim_attempt()
    note(attempt, at, "attempt", hosts=hosts, job_id="77")
    start = {"master_addr": hosts[0], "master_port": 29517, "resume": resume, "nodes": list(range(len(hosts)))}
    note(attempt, at + 0.4, "start", **start)
    return attempt


def failure(attempt: Attempt, rank: int, host: str, code: int, ended: float, message: str, known: str = "") -> Failure:
    return Failure(rank, host, code, BEGAN + ended, message, str(attempt.rank_log(rank)), known)


def fail(run: RunDir, known: str = "shape", text: str = TRACEBACK) -> Attempt:
    """An attempt whose rank 2 on gpu02 fails after 30 s."""
    attempt, message = begin(run), text.rstrip().splitlines()[-1]
    attempt.rank_log(2).write_text(text)
    culprit = failure(attempt, 2, "gpu02", 1, 30.0, message, known)
    victims = [failure(attempt, rank, "gpu01", 1, 30.2, "RuntimeError: closed by peer", "peer-lost") for rank in (0, 1)]
    note(attempt, 30.4, "ended", **Report(1, 1, (culprit,)).to_message())
    note(attempt, 30.4, "stop", why="failure", grace_s=1.0)
    note(attempt, 31.0, "ended", **Report(0, 1, tuple(victims)).to_message())
    result = Result(
        FAILED, "crash", message, rank=2, host="gpu02", exit_code=1, iteration=34, log=culprit.log, known=known,
        hint=BY_ID[known].hint, then="ended: it failed at the same iteration before",
    )  # fmt: skip
    result.write(attempt.verdict)
    result.write(run.result)
    return attempt


def test_a_failed_run_is_told_from_its_end_to_its_logs(run: RunDir, why: Why) -> None:
    preempted = begin(run)
    note(preempted, 12.0, "stop", why="preempted", grace_s=30.0)
    Result(STOPPED, "preempted", iteration=20, then="requeued").write(preempted.verdict)
    attempt = fail(run)
    for second in (-100, 20, 29):
        sample = {"cpu": 0.5, "memory_used_mb": 1024 * (second + 101), "memory_limit_mb": 262144, "disk_free_mb": 9216}
        append_json_line(attempt.samples(1), {"time": BEGAN + second, **sample})
    lines = why().splitlines()
    assert lines[1].startswith("failed: rank 2 on gpu02 exited with code 1 (RuntimeError: mat1 and mat2")
    assert "[shape]" in lines[2] and "print their shapes" in lines[2]
    text = "\n".join(lines)
    for words in [
        "attempt 1 ·", "told to stop (preempted)", "requeued", "attempt 2 ·", "gpu01, gpu02 · job 77",
        "0.4 s  ranks start on gpu01, gpu02", "30.0 s  rank 2 on gpu02 exited with code 1: RuntimeError: mat1",
        "30.2 s  ranks 0-1 on gpu01 exited with code 1", "told to stop (failure)", "at the same iteration before",
        "Traceback", "policy(observations)", "gpu02 in the minute before the end",
        "memory 121.0 GiB → 130.0 GiB of 256.0 GiB · CPU 50%", str(attempt.rank_log(2)),
    ]:  # fmt: skip
        _, found, text = text.partition(words)
        assert found, words
    text = "\n".join(lines)
    assert "iteration 34\n" not in text  # of the log only the traceback


def test_a_failure_that_a_retry_has_mended_is_told_with_its_advice(run: RunDir, why: Why) -> None:
    failed = fail(run)
    append_json_line(failed.samples(1), {"time": BEGAN + 29, "memory_used_mb": 1024, "memory_limit_mb": 2048})
    again = begin(run, resume="/runs/000000020", at=60.0)
    done = Result(COMPLETED, "finished", iteration=500, attempts=2, seconds=40, total_seconds=100, then="ended")
    done.write(again.verdict)
    done.write(run.result)
    text = why()
    for words in [
        "iteration 500 · 40 s in attempt 2, 1 min 40 s since attempt 1 began", "attempt 1 ·",
        "what to do: tensors do not fit", "[shape]", "attempt 2 ·",
        "what the rank said last in attempt 1", "policy(observations)",
        "gpu02 in the minute before the end of attempt 1", str(failed.rank_log(2)), str(again.path),
    ]:  # fmt: skip
        _, found, text = text.partition(words)
        assert found, words


def test_the_same_advice_stands_once_however_many_attempts(run: RunDir, why: Why) -> None:
    for _ in range(5):
        fail(run)
    assert why().count("print their shapes") == 1
    fail(run, "nccl-timeout")
    assert why().count("print their shapes") == 1


def test_a_killed_torchrun_is_told_once(run: RunDir, why: Why) -> None:
    attempt = begin(run)
    killed = Failure(None, "gpu02", -9, BEGAN + 9, "torchrun on gpu02 was killed by SIGKILL", "", "")
    note(attempt, 9.5, "ended", **Report(1, -9, (killed,)).to_message())
    (line,) = (line for line in why().splitlines() if "SIGKILL" in line)
    assert line.strip() == "9.0 s  torchrun on gpu02 was killed by SIGKILL"


def test_programs_get_all_of_it(run: RunDir, why: Why) -> None:
    fail(run)
    story = json.loads(why("--json"))
    assert (story["run_id"], story["state"], story["verdict"]["known"]) == (run.run_id, "failed", "shape")
    assert story["attempts"][0]["moments"][0]["seconds"] == 0.4
    assert story["words"]["traceback"].startswith("Traceback")
    assert story["samples"] is None and story["nccl"] == []


def test_the_settings_that_are_known_to_help_are_offered(run: RunDir, why: Why) -> None:
    fail(run, "nccl-timeout", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE\n")
    text = why()
    assert "known setting: 'nccl=[+p2p_off]': GPUs of one node hang" in text
    assert "what the rank said last\n  Watchdog caught" in text


def test_a_run_that_goes_on_says_what_it_does(run: RunDir, why: Why) -> None:
    attempt = begin(run)
    sample = {"cpu": 0.1, "memory_used_mb": 512, "memory_limit_mb": 1024, "gpus": [{"index": 0, "utilisation": 0.07}]}
    append_json_line(attempt.samples(0), {"time": time.time(), **sample})
    append_json_line(run.metrics, {"time": time.time() - 90, "iteration": 12})
    with agent_of(run.path) as agent:
        write_json(run.submission, {"scheduler": "local", "host": os.uname().nodename, "pid": agent.pid})
        text = why()
    assert "running · iteration 12/500, 1:30 ago" in text
    assert "GPU 0: 7% busy" in text and "gpu01 in the minute until now" in text
    assert "no verdict: it goes on" in text


def test_a_thousand_ranks_are_a_few_lines(run: RunDir, why: Why) -> None:
    hosts = [f"gpu{number:03}" for number in range(256)]
    attempt = begin(run, hosts)
    for node, host in enumerate(hosts):
        ended = [failure(attempt, 4 * node + local, host, -15, 50.0 + node / 1000, "") for local in range(4)]
        note(attempt, 51.0, "ended", **Report(node, 1, tuple(ended)).to_message())
    text = why()
    assert "ranks 0-1023 on 256 nodes were killed by SIGTERM" in text
    assert len(text.splitlines()) < 20


def test_what_other_parts_note_is_shown_as_it_is(run: RunDir, why: Why) -> None:
    note(begin(run), 600.0, "hang_suspected", ranks=[0, 2], limit_s=60)
    assert "10:00  hang suspected: ranks=[0, 2] limit_s=60" in why()


def test_a_run_that_never_began_says_why(run: RunDir, why: Why) -> None:
    (run.slurm / "77_batch.out").write_text("no licence\n")
    text = why()
    assert "lost: its agent died: no licence" in text and str(run.slurm) in text


def test_a_run_that_is_not_there_is_a_mistake_of_one_line(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "nix"]) == 2
    assert "there is no run 'nix'" in capsys.readouterr().err
