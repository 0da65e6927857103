"""Every RL library trains, stops, resumes and fails as the others do: real training, on this machine and on Slurm."""

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import PATIENCE, Launch, environment, launcher_command, only_run, result_of, runs_in, script
from tests.sandbox import Sandbox
from tests.test_local import SCRIPT, metrics_of, processes_of, started
from tests.test_slurm import launch_on

pytestmark = [pytest.mark.train, pytest.mark.usefixtures("compiled_quickly")]

OTHERS = ["rl_games", "skrl", "skrl_jax"]
LIBRARIES = ["rsl_rl", *OTHERS]
SHORT = {
    "rsl_rl": "agent.num_steps_per_env=12",
    "rl_games": "agent.config.horizon_length=12",
    "skrl": "agent.agent.rollouts=12",
    "skrl_jax": "agent.agent.rollouts=12",
}
"""Rollouts that take, and with JAX compile, a fraction of the time."""
METRICS = {"env_steps", "fps", "return_mean", "length_mean", "collect_time", "learn_time", "learning_rate"}


def train(launch: Launch, library: str, *overrides: str) -> "subprocess.CompletedProcess[str]":
    return launch(f"library={library}", *overrides, timeout=380)


def first_observations(run: Path) -> list[str]:
    """What each rank's environments began with."""
    logs = sorted(run.glob("attempts/000/rank-*.log"))
    return [next(line for line in log.read_text().splitlines() if line.startswith("first obs")) for log in logs]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("library", OTHERS)
def test_cartpole_is_solved(launch: Launch, workdir: Path, library: str, ranks: int) -> None:
    done = train(launch, library, f"cluster.nproc_per_node={ranks}", "max_iterations=60")
    assert done.returncode == 0, done.stderr
    run = only_run(workdir)
    result, metrics = result_of(run), metrics_of(run)
    assert (result["outcome"], result["cause"], result["world_size"]) == ("completed", "solved", ranks)
    assert result["metrics"]["length_mean"] >= 475
    assert result["ranks_in_sync"] is True
    assert len(set(first_observations(run))) == ranks
    assert [line["iteration"] for line in metrics] == list(range(1, result["iteration"] + 1))
    assert [line["env_steps"] for line in metrics] == [line["iteration"] * 48 * 64 * ranks for line in metrics]
    assert metrics[-1].keys() >= METRICS and any(key.startswith("loss_") for key in metrics[-1])
    assert len(list(run.rglob("events.out.*"))) == 1
    assert list((run / "tensorboard").rglob("events.out.*"))
    assert not processes_of(run)


def test_rl_games_chooses_among_discrete_actions(launch: Launch, workdir: Path) -> None:
    done = train(launch, "rl_games", "agent=rl_games/cartpole_discrete", "max_iterations=60")
    assert done.returncode == 0, done.stderr
    assert result_of(only_run(workdir))["cause"] == "solved"


@pytest.mark.slurm
@pytest.mark.parametrize("library", OTHERS)
def test_two_nodes_train_one_policy(sandbox: Sandbox, workdir: Path, library: str) -> None:
    overrides = ("cluster=sandbox", "cluster.nodes=2", "num_envs=16", "max_iterations=2", SHORT[library], "wait=true")
    done = launch_on(sandbox, workdir, "task=cartpole", f"library={library}", *overrides, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(workdir)
    result = result_of(run)
    assert (result["cause"], result["iteration"], result["world_size"]) == ("max_iterations", 2, 4)
    assert result["ranks_in_sync"] is True
    assert len(set(first_observations(run))) == 4


def leaves(state: Any, name: str = "") -> dict[str, Any]:
    """All values of a checkpoint, by their place in it."""
    if isinstance(state, (dict, list, tuple)):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {place: leaf for key, value in items for place, leaf in leaves(value, f"{name}.{key}").items()}
    return {name: state}


@pytest.mark.parametrize("library", OTHERS)
def test_a_resumed_training_ends_bit_for_bit_where_an_undisturbed_one_does(
    launch: Launch, workdir: Path, library: str
) -> None:
    common = ("cluster.nproc_per_node=2", "task.solved=null", "num_envs=16", "checkpoint.every=3", SHORT[library])
    for more in (["max_iterations=6"], ["max_iterations=3"], ["max_iterations=6", "resume=latest"]):
        assert train(launch, library, *common, *more).returncode == 0
    at_once, _, resumed = runs_in(workdir / "runs")
    files = (f"checkpoints/000000006/{name}" for name in ("state.pt", "rank-0.pt", "rank-1.pt"))
    for file in files:
        states = [leaves(torch.load(run / file, weights_only=True)) for run in (at_once, resumed)]
        assert states[0].keys() == states[1].keys()
        different = [place for place, value in states[0].items() if not _equal(value, states[1][place])]
        assert not different, f"{file}: {different}"
    timed = ("time", "fps", "collect_time", "learn_time")
    kept = [
        [{k: v for k, v in line.items() if k not in timed} for line in metrics_of(run)] for run in (at_once, resumed)
    ]
    assert kept[1] == kept[0][3:]


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


FAULTY = """\
import os
import gymnasium
from gymnasium.vector import AutoresetMode, VectorWrapper

class Faulty(VectorWrapper):
    steps = 0

    def step(self, actions):
        self.steps += 1
        if os.environ["RANK"] == "1" and self.steps > 20:
            {fault}
        return super().step(actions)

def make(num_envs, seed, device):
    mode = dict(autoreset_mode=AutoresetMode.SAME_STEP)
    return Faulty(gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync", vector_kwargs=mode))
"""


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise ValueError('the cart is gone')", {"exit_code": 1, "message": "ValueError: the cart is gone"}),
        ("os.kill(os.getpid(), 9)", {"signal": "SIGKILL", "message": ""}),
    ],
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_rank_that_fails_is_named_with_its_reason_and_all_end(
    launch: Launch, workdir: Path, library: str, fault: str, expected: dict[str, Any]
) -> None:
    script(workdir, FAULTY.replace("{fault}", fault), "faulty.py")
    done = train(launch, library, "task.env=faulty:make", "cluster.nproc_per_node=2", "num_envs=8", SHORT[library])
    run = only_run(workdir)
    result = result_of(run)
    assert done.returncode == 1
    assert (result["outcome"], result["cause"], result["rank"]) == ("failed", "crash", 1)
    assert {key: result[key] for key in expected} == expected
    assert re.search(rf"^failed: rank 1 on {os.uname().nodename} ", done.stderr, re.M)
    assert not processes_of(run)


@pytest.mark.parametrize("library", LIBRARIES)
def test_ctrl_c_saves_and_leaves_no_process(workdir: Path, library: str) -> None:
    words = ("task=cartpole", f"library={library}", "task.solved=null", "cluster.nproc_per_node=2", "num_envs=8")
    command = subprocess.Popen(launcher_command(*words, SHORT[library]), cwd=workdir, env=environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    run = started(workdir)
    command.send_signal(signal.SIGINT)
    assert command.wait(PATIENCE * 60) == 130
    result = result_of(run)
    assert (result["outcome"], result["cause"], result["ranks_in_sync"]) == ("stopped", "interrupted", True)
    assert (run / "checkpoints" / f"{result['iteration']:09}" / "seal.json").is_file()
    assert not processes_of(run)


POOL = """\
import json, torch
from launcher.train import Rank
from launcher.train.normalisers import pool
with Rank("cpu") as rank:
    samples = torch.arange(24, dtype=torch.float64).reshape(12, 2) ** 1.5
    own = samples[:4] if rank.rank == 0 else samples[4:]
    mean, variance, count = pool(own.mean(0), own.var(0, unbiased=False), len(own))
    torch.testing.assert_close(mean, samples.mean(0))
    torch.testing.assert_close(variance, samples.var(0, unbiased=False))
    print("pooled", count)
"""


def test_the_moments_of_all_ranks_are_those_of_all_samples(launch: Launch, workdir: Path) -> None:
    script(workdir, POOL)
    done = launch(*SCRIPT, "cluster.nproc_per_node=2")
    assert done.returncode == 0, done.stderr
    logs = [(only_run(workdir) / f"attempts/000/rank-{rank}.log").read_text() for rank in (0, 1)]
    assert all("pooled 12" in log for log in logs)


def test_an_unknown_class_of_skrl_is_refused_by_name(launch: Launch, workdir: Path) -> None:
    done = train(launch, "skrl", "agent.agent.learning_rate_scheduler=StepLR")
    assert done.returncode == 1
    assert "learning_rate_scheduler=StepLR is not supported" in result_of(only_run(workdir))["message"]
