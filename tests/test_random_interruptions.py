"""A training that is interrupted at random points by random causes ends where an undisturbed one does.

The everyday form interrupts three times. The full form: ``INTERRUPTIONS=10 python -m pytest -s
tests/test_random_interruptions.py``; ``INTERRUPTIONS_SEED=N`` chooses other points and causes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.node.processes import environment as environment_of
from tests.conftest import PATIENCE, Launch, environment, launcher_command, result_of, runs_in, script, started
from tests.interruptions import INTERRUPTIONS, goes_on_after
from tests.sandbox import Sandbox
from tests.survival import Disturbed
from tests.test_local import metrics_of, processes_of, wait_until
from tests.test_rl_libraries import OTHERS, SHORT, leaves
from tests.test_slurm import launch_on

pytestmark = [pytest.mark.train, pytest.mark.usefixtures("compiled_quickly")]

COUNT = int(os.environ.get("INTERRUPTIONS", "3"))
SEED = int(os.environ.get("INTERRUPTIONS_SEED", "0"))
LAST = 35 * COUNT
CARTPOLE = ("task=cartpole", "task.env='held:make'", "task.solved=null", "num_envs=8")
UNLIMITED = ("retry.crash=unlimited", "retry.node_fail=unlimited")


HELD = """\
import os, time
from pathlib import Path
from gymnasium.vector import AutoresetMode
from launcher.train.vectorization import CartPoles

class Held(CartPoles):
    metadata = {**CartPoles.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    taken = 0

    def step(self, actions):
        iteration = int(Path(os.environ["LAUNCHER_RESUME"]).name or 0) + self.taken // int(os.environ["ROLLOUT"])
        while int(os.environ["LAUNCHER_ATTEMPT"]) < int(os.environ["HELD"]) and iteration >= int(os.environ["AT"]):
            time.sleep(0.1)
        self.taken += 1
        return super().step(actions)

def make(num_envs, seed, device):
    return Held(num_envs)
"""
"""The usual cart poles. An attempt that is to be interrupted does not get beyond iteration AT before it is."""


def held(attempts: int, at: int, rollout: int) -> list[str]:
    """Hold so many attempts before they end."""
    return [f"cluster.env.{name}={value}" for name, value in (("HELD", attempts), ("AT", at), ("ROLLOUT", rollout))]


@pytest.fixture(scope="module")
def cluster() -> Generator[Sandbox]:
    """With time enough for a busy machine to end an iteration before Slurm's SIGKILL, as most sites give it."""
    yield from started(nodes=6, gpus=1, grace=20, extra_conf="KillWait=20")


def submitted(cluster: Sandbox, workdir: Path, name: str, interruptions: int) -> Disturbed:
    """Cartpole on two nodes, in runs of this name."""
    script(workdir, HELD, "held.py")
    done = launch_on(
        cluster, workdir, *CARTPOLE, "library=rsl_rl", "cluster=sandbox", "cluster.nodes=2", "cluster.gpus_per_node=1",
        f"runs_dir={name}", f"max_iterations={LAST}", "agent.num_steps_per_env=8", "checkpoint.every=10", *UNLIMITED,
        *held(interruptions, LAST - 5, 8),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(workdir / name)
    return Disturbed(cluster, run)


@pytest.mark.slurm
@pytest.mark.timeout(600 + 60 * COUNT)
def test_random_interruptions_change_no_bit_of_the_result(cluster: Sandbox, workdir: Path) -> None:
    chosen = random.Random(SEED)
    names = list(INTERRUPTIONS)
    causes = [*chosen.sample(names, len(names)), *chosen.choices(names, k=COUNT)][:COUNT]
    points = sorted(chosen.sample(range(3, LAST - 10), COUNT))
    run, undisturbed = submitted(cluster, workdir, "disturbed", COUNT), submitted(cluster, workdir, "undisturbed", 0)
    expected: list[str] = []
    for name, point in zip(causes, points):
        run.reach(max(point, has_done(run) + 1))
        node = chosen.randrange(2)
        print(f"\niteration {run.iterations()[-1]}: {name}, node {node}", end="", flush=True)
        expected.append(interrupt(run, name, node))
    run.assert_survived(LAST)
    print(f"\niterations lost: {run.lost()}; pauses: {[round(pause, 1) for pause in run.pauses()]} s", flush=True)
    undisturbed.assert_survived(LAST)
    assert_same_bits(run.run, undisturbed.run, LAST)
    assert (run.causes(), undisturbed.causes()) == ([*expected, "max_iterations"], ["max_iterations"])


def interrupt(run: Disturbed, name: str, node: int) -> str:
    """Returns the cause that has to be on record, once the run goes on."""
    before = run.newest
    INTERRUPTIONS[name].strike(run, run.hosts()[node])
    wait_until(lambda: goes_on_after(run, before), 90)
    return INTERRUPTIONS[name].expected(node)


def has_done(run: Disturbed) -> int:
    """The iterations at the end of the attempt before: a program that dies at the same one twice is given up."""
    return max((verdict["iteration"] or 0 for verdict in run.verdicts()), default=0)


def assert_same_bits(one: Path, other: Path, iteration: int) -> None:
    """Parameters, optimizer, random numbers and environments at the end are the same, and so is what was recorded."""
    for name in ("state.pt", "rank-0.pt", "rank-1.pt"):
        files = (run / "checkpoints" / f"{iteration:09}" / name for run in (one, other))
        ours, theirs = (leaves(torch.load(file, weights_only=True)) for file in files)
        assert ours.keys() == theirs.keys()
        same = {place: _equal(value, theirs[place]) for place, value in ours.items()}
        assert all(same.values()), f"{name}: {[place for place, is_same in same.items() if not is_same]}"
    returns = [[line["return_mean"] for line in metrics_of(run)] for run in (one, other)]
    assert returns[0] == returns[1]


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("library", OTHERS)
def test_killed_ranks_change_no_bit_of_the_result_of_any_library(launch: Launch, workdir: Path, library: str) -> None:
    script(workdir, HELD, "held.py")
    words = (
        *CARTPOLE, f"library={library}", SHORT[library], "cluster.nproc_per_node=2", "max_iterations=16",
        "checkpoint.every=4",
    )  # fmt: skip
    assert launch(*words, *held(0, 0, 12), "runs_dir=undisturbed", timeout=280).returncode == 0
    command = subprocess.Popen(
        launcher_command(*words, *held(1, 13, 12), "runs_dir=disturbed"),
        cwd=workdir,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    (run,) = wait_until(lambda: list(workdir.glob("disturbed/*")))
    wait_until(lambda: (run / "metrics.jsonl").exists() and len(metrics_of(run)) >= 4 + SEED % 8)
    for pid in processes_of(run):
        if environment_of(pid).get("LOCAL_RANK") == "1":
            os.kill(pid, signal.SIGKILL)
    assert command.wait(PATIENCE * 120) == 0
    result = result_of(run)
    assert (result["cause"], result["iteration"], result["attempts"]) == ("max_iterations", 16, 2)
    assert [line["iteration"] for line in metrics_of(run)] == list(range(1, 17))
    (undisturbed,) = workdir.glob("undisturbed/*")
    assert_same_bits(run, undisturbed, 16)
