"""What ``status`` says of how busy a run's nodes are, from the ends of their files."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import load
from launcher.records import rundir
from launcher.records.files import append_json_line, write_json
from launcher.records.result import Result
from launcher.records.rundir import RunDir
from launcher.records.samples import newest_samples
from launcher.records.status import Status, status_of
from launcher.slurm.queue import Job
from tests.conftest import Launch

NOW = 1_800_000_000.0


def sample(age_s: float, *uses: float, memory: int = 100, cpu: float | None = 0.5, **more: Any) -> dict[str, Any]:
    gpus = [{"utilisation": use, "memory_used_mb": 20, "memory_total_mb": 80} for use in uses]
    host = {"cpu": cpu, "memory_used_mb": memory, "memory_limit_mb": 1000}
    return {"time": NOW - age_s, **host, **({"gpus": gpus, "gpus_age_s": 0.1} if uses else {}), **more}


def run_of(tmp_path: Path, *files: list[dict[str, Any]]) -> RunDir:
    """A run under way, with the samples of its nodes."""
    run = rundir.create(tmp_path / "runs", "a-run")
    write_json(run.plan, {"budgets": {"sample_s": 5.0}})
    write_json(run.submission, {"scheduler": "slurm", "job_id": "7"})
    attempt = run.claim_attempt()
    write_json(attempt.rendezvous, {"nodes": list(range(len(files))), "hosts": [f"n{n}" for n in range(len(files))]})
    for node, lines in enumerate(files):
        for line in lines:
            append_json_line(attempt.samples(node), line)
    return run


def status_now(run: RunDir, monkeypatch: pytest.MonkeyPatch, state: str = "RUNNING") -> Status:
    monkeypatch.setattr(time, "time", lambda: NOW)
    return status_of(run, {"7": Job(state)})


def test_a_running_runs_line_says_how_busy_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, [sample(8, 0.1, 0.1), sample(3, 0.9, 0.9)], [sample(4, 0.8, 0.02, memory=930, cpu=0.7)])
    status = status_now(run, monkeypatch)
    assert load.short_cells(status.samples) == ("66%, least 2% n1", "60%", "93% n1")
    assert [load.cells(one) for one in status.samples] == [
        ("n0", "90%", "90%", "25%", "50%", "10%", "3 s"),
        ("n1", "41%", "2%", "25%", "70%", "93%", "4 s"),
    ]


def test_programs_get_all_of_the_newest_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = sample(3, 0.9, disk_free_mb=5)
    (found,) = status_now(run_of(tmp_path, [sample(8, 0.1), newest]), monkeypatch).samples
    assert newest.items() <= found.items()
    assert (found["node"], found["host"], found["age_s"], found["stale"]) == (0, "n0", 3.0, False)


@pytest.mark.parametrize("age_s", [31, 3600, -31])
def test_a_sample_of_another_time_says_nothing_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    run = run_of(tmp_path, [sample(1, 0.9)], [sample(age_s, 0.1, memory=999)])
    status = status_now(run, monkeypatch)
    assert [one["stale"] for one in status.samples] == [False, True]
    assert load.short_cells(status.samples) == ("90%", "50%", "")
    assert load.cells(status.samples[1]) == ("n1", "", "", "", "", "", f"{age_s} s: too old")


def test_samples_that_are_taken_seldom_last_longer(tmp_path: Path) -> None:
    attempt = run_of(tmp_path, [sample(100, 0.9)]).attempts()[-1]
    assert [one["stale"] for one in newest_samples(attempt, 60.0, NOW)] == [False]


def test_gpus_whose_driver_has_fallen_silent_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, [{**sample(1, 0.9), "gpus_age_s": 120.0}])
    assert load.short_cells(status_now(run, monkeypatch).samples) == ("", "50%", "")


def test_half_a_line_a_lost_gpu_and_a_node_without_samples_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {**sample(1, 0.5), "gpus": [{"index": 0, "error": "GPU is lost"}, *sample(1, 0.5)["gpus"]]}
    run = run_of(tmp_path, [lost], [])
    with open(run.attempts()[-1].samples(0), "ab") as file:
        file.write(b'{"time": 17')
    status = status_now(run, monkeypatch)
    assert load.short_cells(status.samples) == ("50%", "50%", "")


def test_little_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, [sample(1, *[0.5] * 16)])
    path = run.attempts()[-1].samples(0)
    line = path.read_bytes()
    with open(path, "wb") as file:
        file.seek(10 * 2**30)  # it takes no room: nothing is there but the last line
        file.write(b"\n" + line)
    began = time.perf_counter()
    assert len(status_now(run, monkeypatch).samples) == 1
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize("state", ["PENDING", "COMPLETED"])
def test_only_a_running_run_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    assert not status_now(run_of(tmp_path, [sample(1, 0.9)]), monkeypatch, state).samples


WARNING = {"check": "gpu-idle", "severity": "warning", "message": "1 of 4 GPUs work", "host": "n0"}


def test_warnings_come_from_the_events_while_it_runs_and_from_the_result_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, [])
    for event in ({"event": "start"}, {"event": "warning", **WARNING}):
        append_json_line(run.attempts()[-1].events, {"time": NOW, **event})
    assert status_now(run, monkeypatch).warnings == [WARNING]
    Result("failed", "crash", warnings=[WARNING]).write(run.result)
    assert status_now(run, monkeypatch, "FAILED").warnings == [WARNING]


def test_status_shows_a_runs_nodes_and_warnings_to_who_asks_for_it(launch: Launch, workdir: Path) -> None:
    run = run_of(workdir, [])
    Result("failed", "crash", warnings=[WARNING]).write(run.result)
    write_json(run.submission, {"scheduler": "local", "host": "here", "pid": 1})
    assert "a-run: warning on n0: 1 of 4 GPUs work [gpu-idle]" in launch("status", "a-run").stdout
    assert "gpu-idle" not in launch("status").stdout
    (said,) = json.loads(launch("status", "--json").stdout)
    assert said["warnings"] == [WARNING] and said["samples"] == []
