"""What is silently wrong, found in real runs; the GPUs are nvidia-ml-py's, over a fake of the driver alone."""

import contextlib
import json
import re
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from launcher.records.rundir import RunDir
from launcher.records.samples import newest_samples
from tests.conftest import PATIENCE, environment, launcher_command, only_run, result_of, script
from tests.fake_nvml import FakeDriver
from tests.sandbox import Sandbox
from tests.test_local import SCRIPT, wait_until
from tests.test_slurm import launch_on

pytestmark = pytest.mark.train

OFTEN = "watch.sample_seconds=0.1"


@contextlib.contextmanager
def going_on(workdir: Path, *arguments: str) -> Generator[Path]:
    """A run whose script ends when the file ``over`` is there; its directory."""
    command = launcher_command(*arguments, OFTEN)
    with subprocess.Popen(command, cwd=workdir, env=environment(), stdout=subprocess.DEVNULL) as launched:
        try:
            wait_until(lambda: list(workdir.glob("runs/*/metrics.jsonl")))
            yield only_run(workdir)
        finally:
            (workdir / "over").touch()
            launched.wait(PATIENCE * 60)


def warned(run: Path) -> dict[str, dict[str, Any]]:
    """The warnings so far, by check; each is said once."""
    events = [json.loads(line) for line in (run / "attempts/000/events.jsonl").read_text().splitlines()]
    found = [event for event in events if event["event"] == "warning"]
    assert len({event["check"] for event in found}) == len(found)
    return {event["check"]: event for event in found}


STRANGERS = """\
import json, os, time
rank = os.environ["RANK"]
for iteration in range(10_000):
    if rank == "0":
        with open(os.environ["LAUNCHER_PROGRESS"], "a") as file:
            file.write(json.dumps({"iteration": iteration + 1, "time": time.time()}) + "\\n")
    if os.path.exists("over"):
        break
    time.sleep(0.1)
"""


def test_ranks_that_crowd_on_one_gpu_of_four_and_know_nobody_are_told_aloud(
    driver: FakeDriver, launch: Any, workdir: Path
) -> None:
    script(workdir, STRANGERS)
    with going_on(workdir, *SCRIPT, "cluster.gpus_per_node=4", "cluster.nproc_per_node=2") as run:
        attempt = RunDir(run).attempts()[0]
        ranks = wait_until(lambda: _pids(attempt))
        driver.says({"gpus": 4, "0.busy": 97, "0.processes": ranks[0], "0.more_processes": ranks[1]})
        wait_until(lambda: {"gpu-idle", "shared-gpu", "alone"} <= warned(run).keys())
        shown = launch("status", run.name).stdout
    assert "1 of 4 GPUs work, nothing runs on GPU 1 on" in warned(run)["gpu-idle"]["message"]
    assert "ranks 0 and 1 compute on the same GPU, number 0" in warned(run)["shared-gpu"]["message"]
    assert "24%, least 0%" in shown and "[shared-gpu]" in shown
    assert {one["check"] for one in result_of(run)["warnings"]} == warned(run).keys()
    assert "[gpu-idle]" in (run / "agent.log").read_text()


def _pids(attempt: Any) -> list[int]:
    found = [one["pid"] for sample in newest_samples(attempt, 0.1, 0.0) for one in sample["ranks"]]
    return found if len(found) == 2 else []


TOGETHER = """\
import os, time, torch
from launcher.train import Rank
with Rank("cpu") as rank:
    batch = torch.arange(1000.0) + (rank.rank if os.path.exists("apart") else 0)
    for iteration in range(10_000):
        rank.peers.data.add(batch)
        time.sleep(0.06 if rank.rank == 1 and not os.path.exists("apart") else 0.02)
        rank.worked(0.06 if rank.rank == 1 and not os.path.exists("apart") else 0.02)
        rank.progress(iteration + 1)
        if rank.should_stop(os.path.exists("over")):
            break
"""


def test_a_straggler_and_ranks_with_the_same_data_are_told_aloud(workdir: Path) -> None:
    script(workdir, TOGETHER)
    with going_on(workdir, *SCRIPT, "cluster.nproc_per_node=2") as run:
        wait_until(lambda: {"straggler", "same-data"} <= warned(run).keys())
    assert "rank 1 works 3.0 times as long as the others" in warned(run)["straggler"]["message"]
    assert {one["check"] for one in result_of(run)["warnings"]} == {"straggler", "same-data"}


SAME_WORLD = """\
import os, time
import gymnasium, numpy as np
class Same(gymnasium.vector.VectorEnv):
    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.random = np.random.default_rng(0)  # whatever the seed
    def _observe(self):
        return self.random.random((self.num_envs, 4), np.float32)
    def reset(self, *, seed=None, options=None):
        return self._observe(), {}
    def step(self, actions):
        time.sleep(0.02 if os.environ["RANK"] == "1" else 0.0)
        nothing = np.zeros(self.num_envs, bool)
        return self._observe(), np.zeros(self.num_envs), nothing, nothing, {}
def make(num_envs, seed, device):
    return Same(num_envs)
"""


def test_environments_that_ignore_their_seed_and_a_slow_rank_are_told_of_an_rl_library(
    launch: Any, workdir: Path
) -> None:
    script(workdir, SAME_WORLD, "same.py")
    short = ("num_envs=4", "agent.num_steps_per_env=16", "max_iterations=12", "task.solved=null")
    done = launch("task.env='same:make'", *short, "cluster.nproc_per_node=2", OFTEN)
    assert done.returncode == 0, done.stderr
    run = only_run(workdir)
    assert {"straggler", "same-data"} <= warned(run).keys()
    assert "rank 1 works" in warned(run)["straggler"]["message"]


def test_a_healthy_training_is_left_in_peace(launch: Any, workdir: Path) -> None:
    short = ("num_envs=8", "max_iterations=25", "task.solved=null", "watch.sample_seconds=0.5")
    assert launch("task=cartpole", *short, "cluster.nproc_per_node=2").returncode == 0
    assert not warned(only_run(workdir))


@pytest.mark.slurm
def test_the_straggler_of_a_job_is_named_with_its_host(sandbox: Sandbox, workdir: Path) -> None:
    """Node 0 hears of the other node's samples over the agents' channel, and `status` reads its file."""
    script(workdir, TOGETHER)
    two = ("cluster=sandbox", "cluster.nodes=2", "cluster.nodelist='node[2-3]'", "cluster.nproc_per_node=1")
    launch_on(sandbox, workdir, *SCRIPT, *two, OFTEN).check_returncode()
    run = only_run(workdir)
    try:
        wait_until(lambda: (run / "attempts/000/events.jsonl").exists() and "straggler" in warned(run))
        shown = launch_on(sandbox, workdir, "status", run.name).stdout
    finally:
        (workdir / "over").touch()
    assert warned(run)["straggler"]["host"] == "node3"
    nodes = shown[shown.index("\nNODE") :].splitlines()
    assert [line.split()[0] for line in nodes[1:4]] == ["NODE", "node2", "node3"]
    assert re.search(r"warning on node3: rank 1 works .* \[straggler\]", shown)
    result = wait_until(lambda: (run / "result.json").exists() and result_of(run))
    assert "straggler" in {one["check"] for one in result["warnings"]}
