"""How busy a node is: what the samples say, and that nothing holds up whoever has them taken."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.node import host, processes
from launcher.node.host import CpuTimes
from launcher.node.samples import Sample, Samples, Watched, sampling
from launcher.records.files import read_json_lines
from tests.conftest import environment
from tests.fake_nvml import FakeDriver
from tests.test_local import wait_until

PERIOD_S = 0.1


def gpus(samples: Samples) -> list[dict[str, Any]]:
    return samples.latest.get("gpus") or []


def asking(parent: int) -> list[int]:
    """The processes that ask NVML for a parent."""
    found = ((pid, Path(f"/proc/{pid}/cmdline")) for pid in processes.children(parent))
    return [pid for pid, line in found if line.exists() and "launcher.node.nvml" in line.read_text()]


def test_one_busy_gpu_of_four_shows(driver: FakeDriver, tmp_path: Path) -> None:
    driver.says({"gpus": 4, "2.busy": 97, "2.power": 640_000, "2.throttle": 0x40, "2.processes": 4711})
    file = tmp_path / "samples.jsonl"
    with sampling(file, tmp_path, gpus=True, period_s=PERIOD_S) as samples:
        seen = wait_until(lambda: gpus(samples), 10)
        assert [gpu["utilisation"] for gpu in seen] == [0.0, 0.0, 0.97, 0.0]
        assert (seen[2]["power_w"], seen[2]["throttle"], seen[2]["pids"]) == (640, ["too hot (hardware)"], [4711])
        assert len({gpu["uuid"] for gpu in seen}) == 4
        driver.says({"gpus": 4})
        wait_until(lambda: not any(gpu["utilisation"] for gpu in gpus(samples)), 10)
    *_, last = read_json_lines(file)
    assert last == samples.latest
    wait_until(lambda: not asking(os.getpid()), 10)


def test_a_sample_tells_the_ranks_of_the_run_on_each_of_its_gpus(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child is known by what it inherits; processes of other runs are nobody's."""
    mine = {"RANK": "3", "LAUNCHER_RUN_DIR": str(tmp_path)}
    environments = {100: mine, 101: {**mine, "RANK": "5"}, 102: {"RANK": "0", "LAUNCHER_RUN_DIR": "/other"}}
    monkeypatch.setattr(processes, "environment", lambda pid: environments.get(pid, {}))
    monkeypatch.setattr(processes, "connected", lambda pid: pid == 100)
    driver.says({"gpus": 4, "2.processes": 101, "2.more_processes": 100, "3.processes": 102})
    told: list[Sample] = []
    watched = Watched(lambda: {5: 101, 3: 100}, visible="2,3", tell=told.append)
    with sampling(tmp_path / "samples.jsonl", tmp_path, gpus=True, period_s=PERIOD_S, watched=watched) as samples:
        seen = wait_until(lambda: gpus(samples), 10)
        wait_until(lambda: told and told[-1].get("gpus"), 10)
    assert [(gpu["index"], gpu["ranks"]) for gpu in seen] == [(2, [3, 5]), (3, [])]
    assert samples.latest["ranks"] == [
        {"rank": 3, "pid": 100, "connected": True, "log_bytes": 0},
        {"rank": 5, "pid": 101, "connected": False, "log_bytes": 0},
    ]


def test_the_host_is_sampled_without_any_gpu_and_without_a_process(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    with sampling(file, tmp_path, gpus=False, period_s=PERIOD_S) as samples:
        wait_until(lambda: len(list(read_json_lines(file))) > 2, 10)
        assert not asking(os.getpid())
    sample = samples.latest
    assert "gpus" not in sample
    assert sample["cpu"] is None or 0 <= sample["cpu"] <= 1
    assert 0 < sample["memory_used_mb"] < sample["memory_limit_mb"]
    assert sample["disk_free_mb"] > 0


def test_a_driver_that_hangs_makes_its_samples_old_and_nothing_else(driver: FakeDriver, tmp_path: Path) -> None:
    with sampling(tmp_path / "samples.jsonl", tmp_path, gpus=True, period_s=PERIOD_S) as samples:
        wait_until(lambda: gpus(samples), 10)
        driver.says({"gpus": 4, "slow.nvmlDeviceGetUtilizationRates": 600_000})
        wait_until(lambda: samples.latest["gpus_age_s"] > 5 * PERIOD_S, 10)
        assert time.time() - samples.latest["time"] < 5
    wait_until(lambda: not asking(os.getpid()), 10)


def test_a_process_that_was_killed_is_started_again(driver: FakeDriver, tmp_path: Path) -> None:
    with sampling(tmp_path / "samples.jsonl", tmp_path, gpus=True, period_s=PERIOD_S) as samples:
        wait_until(lambda: gpus(samples), 10)
        (first,) = asking(os.getpid())
        driver.says({"gpus": 4, "1.busy": 50})
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: gpus(samples)[1]["utilisation"] == 0.5, 10)
        assert asking(os.getpid()) != [first]


def test_a_driver_that_fails_is_told_instead_of_gpus(driver: FakeDriver, tmp_path: Path) -> None:
    driver.says({"init": 18})
    with sampling(tmp_path / "samples.jsonl", tmp_path, gpus=True, period_s=PERIOD_S) as samples:
        wait_until(lambda: "mismatch" in samples.latest.get("gpus_problem", ""), 10)
        assert samples.latest["gpus"] is None
        wait_until(lambda: not asking(os.getpid()), 10)  # it is not started for ever


AGENT = """
import sys, time
from pathlib import Path
from launcher.node.samples import sampling
with sampling(Path("samples.jsonl"), Path("."), gpus=True, period_s=0.1):
    time.sleep(600)
"""


def test_nothing_is_left_when_the_agent_is_killed(driver: FakeDriver, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", AGENT], cwd=tmp_path, env=environment()) as agent:
        (asker,) = wait_until(lambda: asking(agent.pid), 10)
        agent.kill()
    wait_until(lambda: not Path(f"/proc/{asker}").exists() or _is_dead(asker), 10)


def _is_dead(pid: int) -> bool:
    """Nobody may have reaped it yet."""
    return re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None


def test_a_directory_that_goes_away_ends_no_samples(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    with sampling(place / "samples.jsonl", place, gpus=False, period_s=PERIOD_S) as samples:
        wait_until(lambda: samples.latest, 10)
        (place / "samples.jsonl").unlink(missing_ok=True)
        place.rename(tmp_path / "elsewhere")
        wait_until(lambda: samples.latest["disk_free_mb"] is None, 10)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("", False),
        ("listening = socket.create_server(('127.0.0.1', 0))", False),
        ("there = socket.create_connection(('127.0.0.1', PORT))", True),
        ("there = socket.create_connection(('127.0.0.1', PORT)); os.fork() or time.sleep(600); there.close()", True),
    ],
)
def test_a_process_that_holds_a_connection_or_has_a_child_that_does_is_connected(program: str, expected: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = program.replace("PORT", str(server.getsockname()[1]))
        command = [sys.executable, "-c", f"import os, socket, time\n{text}\nprint(flush=True)\ntime.sleep(600)"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout is not None and process.stdout.readline()
            assert processes.connected(process.pid) == expected
            os.killpg(process.pid, signal.SIGKILL)


def test_the_use_of_processors_is_that_of_the_time_in_between() -> None:
    assert CpuTimes(150, 400).used_since(CpuTimes(100, 200)) == 0.25
    assert CpuTimes(100, 200).used_since(CpuTimes(100, 200)) is None


@pytest.mark.parametrize(
    ("line", "kind", "files"),
    [
        (
            "0::/slurm/job_1/step_0", "",
            {
                "memory.max": "1073741824", "memory.current": "805306368",
                "memory.stat": "anon 5\nactive_file 167772160\ninactive_file 100663296\nshmem 7\n",
            },
        ),
        (
            "7:memory:/slurm/job_1/step_0", "memory",
            {
                "memory.limit_in_bytes": "1073741824", "memory.usage_in_bytes": "805306368",
                "memory.stat": "inactive_file 0\ntotal_active_file 167772160\ntotal_inactive_file 100663296\n",
            },
        ),
        ("0::/slurm/job_1/step_0", "", {"memory.max": "1073741824", "memory.current": "536870912"}),
    ],
)  # fmt: skip
def test_a_jobs_memory_is_its_control_groups_without_copies_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, kind: str, files: dict[str, str]
) -> None:
    """The limit stands at the job, two levels above none and one above the step, which has none of its own."""
    job = tmp_path / "cgroup" / kind / "slurm" / "job_1"
    (job / "step_0").mkdir(parents=True)
    for name, text in files.items():
        (job / name).write_text(text)
    (job / "step_0" / "memory.max").write_text("max")
    (tmp_path / "self").write_text(f"12:cpu:/other\n{line}\n")
    monkeypatch.setattr(host, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(host, "_OWN_GROUPS", tmp_path / "self")
    assert (host.memory().used, host.memory().limit) == (512, 1024)
