"""The run directory: complete or absent, private, found by what a person types."""

import json
import os
import stat
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import UserError
from launcher.records import nodes, rundir
from launcher.records.files import (
    append_json_line,
    create_json,
    last_json_line,
    read_json,
    read_json_lines,
    write_atomic,
    write_json,
)
from launcher.records.result import Result, read_result
from launcher.records.status import status_of
from launcher.slurm.queue import Job


def test_a_run_directory_is_private_and_made_once(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "runs", "a-run")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.secret.stat().st_mode) == 0o600
    assert len(run.secret.read_text()) == 64
    with pytest.raises(UserError):
        rundir.create(tmp_path / "runs", "a-run")


def test_runs_can_share_one_copy_of_the_package_and_have_their_own_otherwise(tmp_path: Path) -> None:
    rundir.copy_package(tmp_path / "runs" / "code")
    shared, own = rundir.create(tmp_path / "runs", "a", tmp_path / "runs" / "code"), rundir.create(tmp_path, "b")
    assert shared.code.readlink() == Path("../code")
    for run in (shared, own):
        assert (run.code / "launcher" / "node" / "__main__.py").is_file()
        assert not (run.code / "launcher" / "report").exists()  # nothing that only commands need


def test_a_runs_dir_that_is_no_directory_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="runs_dir="):
        rundir.create(tmp_path / "file", "a-run")


def test_run_ids_sort_by_time_and_differ_within_a_second() -> None:
    now = datetime(2026, 11, 29, 18, 15, 2)
    ids = {rundir.new_run_id("t", "l", now) for _ in range(20)}
    assert len(ids) > 1
    assert all(run_id.startswith("20261129-181502-t-l-") for run_id in ids)


def test_two_claimants_never_get_the_same_attempt(tmp_path: Path) -> None:
    run = rundir.create(tmp_path, "a-run")
    claimed: list[int] = []
    threads = [threading.Thread(target=lambda: claimed.append(run.claim_attempt().number)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(20))


def _runs(tmp_path: Path, *names: str) -> None:
    for number, name in enumerate(names):
        run = rundir.create(tmp_path, name)
        write_json(run.plan, {})
        write_json(run.submission, {"scheduler": "slurm", "job_id": str(1000 + number)})


def test_a_run_is_found_by_id_beginning_directory_and_job(tmp_path: Path) -> None:
    _runs(tmp_path, "2026-ant", "2026-ant-2", "2027-bee")
    assert rundir.find(tmp_path, "2026-ant").run_id == "2026-ant"  # exact before longer ones
    assert rundir.find(tmp_path, "2027").run_id == "2027-bee"
    assert rundir.find(tmp_path, "1001").run_id == "2026-ant-2"
    assert rundir.find(tmp_path, str(tmp_path / "2027-bee")).run_id == "2027-bee"
    with pytest.raises(UserError, match=r"2026-ant, 2026-ant-2"):
        rundir.find(tmp_path, "2026")
    with pytest.raises(UserError, match="no run 'x'"):
        rundir.find(tmp_path, "x")


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    with pytest.raises(TypeError):
        write_atomic(path, 3)  # pyright: ignore[reportArgumentType]
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@given(st.binary(max_size=40))
def test_a_reader_of_a_log_passes_over_what_is_no_record(noise: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        append_json_line(path, {"a": 1})
        with open(path, "ab") as file:
            file.write(noise.replace(b"{", b"") + b"\n")
        append_json_line(path, {"a": 2})
        with open(path, "ab") as file:
            file.write(b'{"a": 3')  # still being written
        assert list(read_json_lines(path)) == [{"a": 1}, {"a": 2}]
        assert last_json_line(path) == {"a": 2}


def test_nothing_to_read_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "x") is None
    assert last_json_line(tmp_path / "x") is None
    assert read_result(tmp_path / "x") is None


def test_the_verdict_reads_back_and_says_who_where_and_how() -> None:
    result = Result("failed", "crash", "ValueError: boom", rank=3, host="node2", exit_code=7, iteration=12, seconds=4.2)
    assert result.line() == "failed: rank 3 on node2 exited with code 7 (ValueError: boom) · iteration 12 · 4 s"
    killed = Result("failed", "crash", rank=0, host="n", signal="SIGKILL")
    assert "rank 0 on n was killed by SIGKILL" in killed.line()


def test_the_line_of_a_run_tells_its_last_attempt_from_all_of_them() -> None:
    again = Result("completed", "solved", iteration=40, attempts=3, seconds=94.0, total_seconds=3 * 3600 + 300.0)
    assert again.attempt_line() == "completed: solved · iteration 40 · 1 min 34 s"
    assert again.line() == f"{again.attempt_line()} in attempt 3, 3 h 5 min since attempt 1 began"
    assert Result("completed", "solved", seconds=9.6, total_seconds=9.7).line() == "completed: solved · 10 s"


def test_a_result_of_a_later_version_can_still_be_read(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"outcome": "completed", "cause": "solved", "new": 1}))
    assert read_result(tmp_path / "result.json") == Result("completed", "solved")


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (Job("PENDING", "Resources"), "pending"),
        (Job("RUNNING"), "running"),
        (Job("SOMETHING_NEW"), "running"),
        (Job("NODE_FAIL"), "lost"),
        (None, "lost"),
    ],
)
def test_a_run_without_a_verdict_is_what_slurm_says_of_its_job(tmp_path: Path, job: Job | None, state: str) -> None:
    _runs(tmp_path, "a-run")
    run = rundir.find(tmp_path, "a-run")
    assert status_of(run, {"1000": job} if job else {}).state == state
    assert status_of(run, None).state == "unknown"


def test_a_verdict_stands_unless_the_job_is_queued_again(tmp_path: Path) -> None:
    _runs(tmp_path, "a-run")
    run = rundir.find(tmp_path, "a-run")
    Result("completed", "solved").write(run.result)
    assert status_of(run, {"1000": Job("COMPLETED")}).state == "completed"
    assert status_of(run, None).state == "completed"
    assert status_of(run, {"1000": Job("PENDING", "BeginTime")}).state == "pending"


def test_a_stopped_run_is_not_over_before_its_job_is(tmp_path: Path) -> None:
    _runs(tmp_path, "a-run")
    run = rundir.find(tmp_path, "a-run")
    Result("stopped", "terminated").write(run.result)
    assert status_of(run, {"1000": Job("COMPLETING")}).state == "running"
    assert status_of(run, {"1000": Job("CANCELLED")}).state == "stopped"


def test_a_local_run_whose_agent_is_gone_is_lost_even_if_its_pid_lives_on(tmp_path: Path) -> None:
    _runs(tmp_path, "a-run")
    run = rundir.find(tmp_path, "a-run")
    write_json(run.submission, {"scheduler": "local", "host": os.uname().nodename, "pid": os.getpid()})
    assert status_of(run, None).state == "lost"


def test_of_several_claimants_of_a_record_one_gets_it(tmp_path: Path) -> None:
    won: list[int] = []
    barrier = threading.Barrier(8)

    def claim(number: int) -> None:
        barrier.wait()
        if create_json(tmp_path / "claim.json", {"by": number}):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert read_json(tmp_path / "claim.json") == {"by": won[0]}
    assert [path.name for path in tmp_path.iterdir()] == ["claim.json"]


@pytest.mark.parametrize(
    ("submission", "state", "detail"),
    [
        ({"hosts": ["a", "b"]}, "pending", "nobody has started it on a"),
        ({"hosts": ["a", "b"], "host": "a", "pid": 1}, "unknown", "started on a: ask there"),
        ({"hosts": ["a", "b"], "host": os.uname().nodename, "pid": 2**22}, "lost", "its agent died"),
    ],
)
def test_a_run_without_a_scheduler_is_asked_about_on_its_first_host(
    tmp_path: Path, submission: dict[str, Any], state: str, detail: str
) -> None:
    run = rundir.create(tmp_path, "a-run")
    write_json(run.submission, {"scheduler": "none", **submission})
    status = status_of(run, None)
    assert (status.state, status.detail) == (state, detail)


@pytest.mark.parametrize(
    ("job", "state", "detail"),
    [
        (Job("PENDING", "BeginTime"), "pending", "its time to begin has not come (BeginTime), goes on after node lost"),
        (Job("CANCELLED"), "stopped", "cancelled while it waited to go on after node lost"),
        (Job("RUNNING"), "running", ""),
    ],
)
def test_a_run_between_two_attempts_says_what_ended_the_last_one(
    tmp_path: Path, job: Job, state: str, detail: str
) -> None:
    run = rundir.create(tmp_path, "a-run")
    write_json(run.submission, {"scheduler": "slurm", "job_id": "7"})
    Result("failed", "node_lost", then="requeued").write(run.claim_attempt().verdict)
    status = status_of(run, {"7": job})
    assert (status.state, status.detail) == (state, detail)


def test_a_node_that_failed_is_avoided_until_its_time_is_over(tmp_path: Path) -> None:
    nodes.remember(tmp_path, ["a", "b"], "node_lost", "the-run", 3600)
    nodes.remember(tmp_path, ["c"], "preflight", "the-run", 0)
    nodes.remember(tmp_path, ["a"], "preflight", "another-run", 3600)
    assert [(node.host, node.cause) for node in nodes.bad_nodes(tmp_path)] == [("a", "preflight"), ("b", "node_lost")]
    own = rundir.launchers_own(tmp_path)
    assert list(tmp_path.iterdir()) == [own] and own.stat().st_mode & 0o077 == 0
    (own / "bad_nodes.jsonl").write_text('{"host": "a"}\nhalf a li')
    assert nodes.bad_nodes(tmp_path) == []
