"""``logs``: what the ranks of a run printed, whatever attempts it took, each line once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.main import main
from launcher.records.files import append_json_line, write_json
from launcher.records.printed import Printed, of_all_ranks, of_rank
from launcher.records.result import COMPLETED, Result
from launcher.records.rundir import Attempt, RunDir
from tests.agents import agent_of
from tests.test_local import wait_until
from tests.test_why import begin, fail, run

__all__ = ["run"]

Logs = Callable[..., str]


@pytest.fixture
def logs(run: RunDir, capsys: pytest.CaptureFixture[str]) -> Logs:
    def ask(*options: str, code: int = 0) -> str:
        assert main(["logs", run.run_id, *options]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return ask


def two_attempts(run: RunDir) -> list[Attempt]:
    """On two nodes with two ranks each; in the second the nodes have changed places."""
    attempts = [begin(run), begin(run)]
    for attempt, nodes in zip(attempts, ([0, 1], [1, 0])):
        hosts = [f"gpu{node + 1:02}" for node in nodes]
        write_json(attempt.rendezvous, {"nodes": nodes, "hosts": hosts, "job_id": "77"})
        for rank in range(4):
            attempt.rank_log(rank).write_text(f"attempt {attempt.number} rank {rank}\nsame line\n")
    return attempts


def sample(attempt: Attempt, node: int, time: float, **sizes: int) -> None:
    """`sizes` are of the logs, as ``rank0``."""
    ranks = [{"rank": int(name[4:]), "pid": 1, "connected": True, "log_bytes": size} for name, size in sizes.items()]
    append_json_line(attempt.samples(node), {"time": time, "cpu": 0.0, "ranks": ranks})


def test_a_rank_is_shown_over_all_its_attempts_and_where_each_begins(run: RunDir, logs: Logs) -> None:
    first, _, third = [*two_attempts(run), begin(run)]
    with open(first.rank_log(0), "a") as log:
        log.write("cut off in the mid")
    third.rank_log(0).write_bytes("épo".encode() + b"\xff que\n")
    shown = logs().splitlines()
    assert shown[:4] == [
        "attempt 0 rank 0",
        "same line",
        "cut off in the mid",
        "==> attempt 2 · job 77 · gpu02,gpu01 <==",
    ]
    assert shown[4:] == ["attempt 1 rank 0", "same line", "==> attempt 3 <==", "épo\N{REPLACEMENT CHARACTER} que"]


def test_one_attempt_is_shown_without_anything_else(run: RunDir, logs: Logs) -> None:
    two_attempts(run)
    assert logs("--attempt", "1", "--rank", "3") == "attempt 0 rank 3\nsame line\n"
    assert "attempt 1 rank 0" in logs("--attempt", "-1")
    assert "has the attempts 1 to 2, and no attempt 3" in logs("--attempt", "3", code=2)


def test_ranks_are_interleaved_by_the_samples_of_their_nodes(run: RunDir, logs: Logs) -> None:
    attempt = begin(run)
    for rank in range(3):
        attempt.rank_log(rank).write_text(f"{rank} early\n{rank} late\n")
    early, late = len("0 early\n"), len("0 early\n0 late\n")
    sample(attempt, 0, 5.0, rank0=early, rank1=0)
    sample(attempt, 1, 7.0, rank2=late)
    sample(attempt, 0, 10.0, rank0=early, rank1=early)
    sample(attempt, 0, 15.0, rank0=late)  # rank 1 has ended: its last line was before this
    expected = ["0 early", "2 early", "2 late", "1 early", "0 late", "1 late"]
    assert logs("--all").splitlines() == [f"rank {line[0]} | {line}" for line in expected]


def test_lines_that_nothing_dates_stand_rank_after_rank(run: RunDir, logs: Logs) -> None:
    two_attempts(run)
    shown = logs("--all", "--attempt", "2").splitlines()[1:]
    assert shown == [f"rank {rank} | {line}" for rank in range(4) for line in (f"attempt 1 rank {rank}", "same line")]


@pytest.mark.parametrize("node", ["gpu03", "2"])
def test_a_node_that_the_run_never_had_is_a_mistake(run: RunDir, capsys: pytest.CaptureFixture[str], node: str) -> None:
    two_attempts(run)
    assert main(["logs", str(run.path), "--node", node]) == 2
    assert capsys.readouterr().err == (
        f"launcher: run {run.run_id} has trained on gpu01, gpu02, and not on node '{node}'\n"
    )


@pytest.mark.parametrize("node", ["1", "gpu02"])
def test_a_node_is_its_ranks_and_torchrun_wherever_it_stood_in_the_order(run: RunDir, logs: Logs, node: str) -> None:
    first, _ = two_attempts(run)
    first.node_log(1).write_text("said by torchrun\n")
    shown = logs("--node", node)
    assert "torchrun 1 | said by torchrun" in shown and "attempt 0 rank 3" in shown
    assert "attempt 1 rank 1" in shown and "attempt 1 rank 2" not in shown


def test_lines_are_picked_with_what_stands_around_them_in_the_same_log(run: RunDir, logs: Logs) -> None:
    attempt = begin(run)
    for rank in range(2):
        lines = [f"{rank} line {number}{' NaN' if number in (3, 9) and rank == 1 else ''}\n" for number in range(12)]
        attempt.rank_log(rank).write_text("".join(lines))
    assert logs("--all", "--grep", "(?i)nan$") == "rank 1 | 1 line 3 NaN\nrank 1 | 1 line 9 NaN\n"
    shown = [line.partition("line ")[2] or line for line in logs("--all", "--grep", "NaN", "-C", "1").splitlines()]
    assert shown == ["2", "3 NaN", "4", "--", "8", "9 NaN", "10"]
    assert logs("--grep", "NaN") == ""
    assert "is no regular expression" in logs("--grep", "(", code=2)


def test_of_a_bar_of_progress_the_last_state_is_a_line(run: RunDir, logs: Logs) -> None:
    begin(run).rank_log(0).write_text("\r 10%\r 50%\r100%\r\n")
    assert logs("--all") == "rank 0 | 100%\n"


def test_the_first_error_comes_first_then_what_it_caused(run: RunDir, logs: Logs) -> None:
    fail(run)
    lines = logs("--errors").splitlines()
    assert lines[0].startswith("attempt 1: failed: rank 2 on gpu02 exited with code 1 (RuntimeError: mat1")
    assert lines[2].strip().startswith("Traceback") and "policy(observations)" in "\n".join(lines)
    assert lines[-2].strip().startswith("30.0 s  rank 2 on gpu02")
    assert lines[-1].strip().startswith("30.2 s  ranks 0-1 on gpu01")
    assert "it goes with --attempt only" in logs("--errors", "-f", code=2)


def test_a_rank_that_printed_an_exception_is_shown_before_anybody_has_judged(run: RunDir, logs: Logs) -> None:
    attempt = begin(run)
    attempt.rank_log(0).write_text("fine\n")
    assert "no rank of" in logs("--errors")
    attempt.rank_log(1).write_text("Traceback (most recent call last):\n  File 'x'\nValueError: odd\n")
    assert (
        "of 1 ranks' logs" in (shown := logs("--errors"))
        and str(attempt.rank_log(1)) in shown
        and "ValueError: odd" in shown
    )


WRITES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(["a", "é", "\n", "b\nc", "\n\n", "€€"])),
    max_size=40,
)


@given(WRITES, st.sets(st.integers(0, 40)))
def test_each_byte_is_read_once_however_the_logs_grow(writes: list[tuple[int, int, str]], readings: set[int]) -> None:
    """Attempts begin in between, and an older one may still write: its node was cut off."""
    with tempfile.TemporaryDirectory() as directory:
        run = RunDir(Path(directory))
        alone, together = Printed(run, of_rank(1)), Printed(run, of_all_ranks)
        texts: dict[Path, str] = {}
        lines: dict[Path, list[str]] = {}
        for index, (attempt, rank, text) in enumerate(sorted(writes, key=lambda one: one[0] // 2)):
            while len(run.attempts()) <= attempt:
                run.claim_attempt()
            path = run.attempts()[attempt].rank_log(rank)
            data = text.encode()
            for part in (data[:1], data[1:]):  # in the middle of a character
                with open(path, "ab") as file:
                    file.write(part)
                if index in readings:
                    take(alone, together, texts, lines, last=False)
        take(alone, together, texts, lines, last=True)
        for attempt in run.attempts():
            for rank in range(3):
                written = attempt.rank_log(rank)
                text = written.read_text() if written.exists() else ""
                assert "".join(lines.get(written, [])) == text + ("\n" if text and text[-1] != "\n" else "")
                assert rank != 1 or texts.get(written, "") == text


def take(alone: Printed, together: Printed, texts: dict[Path, str], lines: dict[Path, list[str]], last: bool) -> None:
    for piece in alone.new(last=last):
        texts[piece.log.path] = texts.get(piece.log.path, "") + piece.text
    for piece in together.new(last=last, whole_lines=True):
        lines.setdefault(piece.log.path, []).append(piece.text)


def test_following_goes_over_attempts_and_ends_with_the_run(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.cli.logs._POLL_S", 0.01)
    monkeypatch.setattr("launcher.cli.following._ASK_S", 0.05)
    out, err = "", ""

    def printed(text: str) -> bool:
        nonlocal out, err
        new = capsys.readouterr()
        out, err = out + new.out, err + new.err
        return out.endswith(text)

    with agent_of(run.path) as agent, ThreadPoolExecutor() as pool:
        write_json(run.submission, {"scheduler": "local", "host": os.uname().nodename, "pid": agent.pid})
        following = pool.submit(main, ["logs", "-f", run.run_id])
        first = begin(run)
        first.rank_log(0).write_text("half")
        wait_until(lambda: printed("half"), 10)
        begin(run).rank_log(0).write_text("of the second\n")
        wait_until(lambda: printed("half\n==> attempt 2 <==\nof the second\n"), 10)
        with open(first.rank_log(0), "a") as log:
            log.write(" a line\n")
        wait_until(lambda: printed("==> attempt 1 <==\n a line\n"), 10)
        assert not following.done()
        Result(COMPLETED, "finished").write(run.result)
        agent.kill()
        assert following.result(10) == 0
    assert printed(" a line\n") and err == "launcher: running\ncompleted: finished · 0 s\n"
