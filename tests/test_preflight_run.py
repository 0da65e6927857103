"""What the preflight of a run does to the run."""

import json
import time
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, FakeDriver, Launch, only_run, result_of, script
from tests.test_local import SCRIPT

pytestmark = pytest.mark.train

UNTIL_SAMPLED = """\
import os, time
while not os.path.exists(os.environ["LAUNCHER_RUN_DIR"] + "/attempts/000/samples-0.jsonl"):
    time.sleep(0.1)
"""
ON_GPUS = ("cluster.device=cuda", "cluster.gpus_per_node=2", "cluster.nproc_per_node=1")


def test_a_sick_gpu_ends_the_run_before_it_hangs_and_is_named(
    driver: FakeDriver, launch: Launch, workdir: Path
) -> None:
    driver.says({"gpus": 2, "1.ecc_uncorrected": 7})
    script(workdir, "import time\ntime.sleep(100)\n")
    began = time.monotonic()
    done = launch(*SCRIPT, *ON_GPUS)
    assert done.returncode == 1
    result = result_of(only_run(workdir))
    assert (result["outcome"], result["cause"]) == ("failed", "preflight")
    assert "GPU 1" in result["message"] and result["host"] in done.stderr
    assert time.monotonic() - began < PATIENCE * 20


def test_a_missing_interface_is_a_mistake_of_the_setup_and_no_nodes_fault(launch: Launch, workdir: Path) -> None:
    script(workdir, "import time\ntime.sleep(100)\n")
    launch(*SCRIPT, "cluster.env.GLOO_SOCKET_IFNAME=nix0")
    result = result_of(only_run(workdir))
    assert (result["outcome"], result["cause"]) == ("failed", "setup")
    assert "nix0" in result["message"] and not list((workdir / "runs").glob(".launcher/bad_nodes*"))


def test_a_healthy_node_is_looked_at_sampled_and_left_in_peace(launch: Launch, workdir: Path) -> None:
    script(workdir, UNTIL_SAMPLED)
    assert launch(*SCRIPT).returncode == 0
    attempt = only_run(workdir) / "attempts/000"
    events = [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]
    (looked,) = [event for event in events if event["event"] == "preflight"]
    assert looked["seconds"] < PATIENCE * 5
    assert (attempt / "samples-0.jsonl").read_text().startswith("{")


def test_what_is_turned_off_looks_at_nothing(driver: FakeDriver, launch: Launch, workdir: Path) -> None:
    driver.says({"gpus": 2, "1.ecc_uncorrected": 7})
    script(workdir, "")
    assert launch(*SCRIPT, *ON_GPUS, "watch.preflight=off", "watch.sample_seconds=0").returncode == 0
    attempt = only_run(workdir) / "attempts/000"
    assert "preflight" not in (attempt / "events.jsonl").read_text()
    assert not list(attempt.glob("samples-*"))
