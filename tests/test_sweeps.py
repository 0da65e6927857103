"""Sweeps on a real Slurm: one command, one array."""

import json
import os
import re
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, launcher_command, script, started
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import in_cluster, launch_on

pytestmark = [pytest.mark.slurm, pytest.mark.train]

ONE_RANK = (
    "task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox", "cluster.gpus_per_node=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def small() -> Generator[Sandbox]:
    """Two nodes with four GPUs each, and arrays of at most 11 indices."""
    yield from started(nodes=2, gpus=4, extra_conf="MaxArraySize=11\n")


def sweep_of(workdir: Path) -> Path:
    (sweep,) = (path.parent for path in (workdir / "runs").glob("*/sweep.json"))
    return sweep


def rows(cluster: Sandbox, workdir: Path) -> list[dict[str, Any]]:
    done = launch_on(cluster, workdir, "status", sweep_of(workdir).name, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def printed(run: dict[str, Any], word: str) -> str:
    """What rank 0 of a run printed after a word."""
    log = (Path(run["run_dir"]) / "attempts/000/rank-0.log").read_text()
    (found,) = re.findall(rf"{word} (.*)", log)
    return found


def test_a_sweep_is_one_array_whose_failed_runs_are_failed_jobs_and_start_again_alone(
    sandbox: Sandbox, workdir: Path
) -> None:
    script(
        workdir, "import os, sys\nsys.exit(7 if 'bad' in sys.argv and os.environ['LAUNCHER_ATTEMPT'] == '0' else 0)\n"
    )
    done = launch_on(sandbox, workdir, "-m", *ONE_RANK, "task.args=[good],[bad]", "seed=1,2", "wait=true")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 completed, 2 failed" in done.stdout
    before = rows(sandbox, workdir)
    assert [(row["overrides"], row["state"]) for row in before] == [
        ("task.args=[good] seed=1", "completed"), ("task.args=[good] seed=2", "completed"),
        ("task.args=[bad] seed=1", "failed"), ("task.args=[bad] seed=2", "failed"),
    ]  # fmt: skip
    (array,) = {row["where"].partition("_")[0] for row in before}
    states = sandbox.run(["sacct", "-nPX", "-j", array, "-o", "JobID,State"]).stdout.split()
    assert states == [f"{array}_{index}|{'COMPLETED' if index < 2 else 'FAILED'}" for index in range(4)]
    again = launch_on(sandbox, workdir, "resume", sweep_of(workdir).name, "--failed", "--wait")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [(row["state"], row["attempts"]) for row in rows(sandbox, workdir)] == [("completed", 1)] * 2 + [
        ("completed", 2)
    ] * 2
    nothing = launch_on(sandbox, workdir, "resume", sweep_of(workdir).name)
    assert (nothing.returncode, "has no run that could be started again" in nothing.stderr) == (2, True)


def test_more_runs_than_an_array_may_have_indices_are_several_arrays(small: Sandbox, workdir: Path) -> None:
    script(workdir, "import os\nprint('TASK', os.environ['LAUNCHER_JOB_ID'])\n")
    done = launch_on(small, workdir, "-m", *ONE_RANK, "seed=range(25)", "wait=true", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(small, workdir)
    arrays = list(dict.fromkeys(row["where"].partition("_")[0] for row in found))
    assert [row["where"] for row in found] == [
        f"{array}_{index}" for array, most in zip(arrays, (11, 11, 3)) for index in range(most)
    ]
    assert [printed(row, "TASK") for row in found] == [row["where"] for row in found]


SEES = """\
import os, sys, time
from pathlib import Path
print("SEES", os.uname().nodename, os.environ["CUDA_VISIBLE_DEVICES"])
Path("rank-" + Path(os.environ["LAUNCHER_RUN_DIR"]).name).touch()
"""


def test_packed_runs_share_nodes_and_see_their_own_device_only(small: Sandbox, workdir: Path) -> None:
    script(workdir, SEES + "while len(list(Path().glob('rank-*'))) < 8:\n    time.sleep(0.1)\n")
    packed = [word for word in ONE_RANK if "gpus_per_node" not in word]
    done = launch_on(
        small, workdir, "-m", *packed, "cluster.gpus_per_node=4", "seed=range(8)", "sweep.pack=4", "wait=true"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(small, workdir)
    assert len({row["where"] for row in found}) == 2
    seen = [printed(row, "SEES") for row in found]
    assert sorted(seen) == [f"node{node} {gpu}" for node in (1, 2) for gpu in range(4)]


def test_a_pack_over_two_nodes_fails_when_one_of_its_runs_does_and_the_others_go_on(
    small: Sandbox, workdir: Path
) -> None:
    goes_on = "while not list(Path().glob('runs/*/*-0003/result.json')):\n    time.sleep(0.1)\n"
    script(workdir, f"{SEES}if '3' in sys.argv: sys.exit(1)\n{goes_on}")
    packed = [word for word in ONE_RANK if "gpus_per_node" not in word]
    args = "task.args=[0],[1],[2],[3]"
    done = launch_on(small, workdir, "-m", *packed, "cluster.gpus_per_node=2", args, "sweep.pack=4", "wait=true")
    assert done.returncode == 1, done.stdout + done.stderr
    found = rows(small, workdir)
    assert [row["state"] for row in found] == ["completed"] * 3 + ["failed"]
    seen = [printed(row, "SEES") for row in found]
    assert [one.split()[0] for one in seen] == ["node1", "node1", "node2", "node2"]
    assert len(set(seen)) == 4  # a device each; which ones is Slurm's choice
    (array,) = {row["where"] for row in found}
    assert sandbox_state(small, array) == "FAILED"


def sandbox_state(cluster: Sandbox, job_id: str) -> str:
    return cluster.run(["sacct", "-nPX", "-j", job_id, "-o", "State"]).stdout.strip()


REQUEUES_ITSELF = """\
import os, subprocess, time
if os.environ["ARG"] == "last" and os.environ["LAUNCHER_ATTEMPT"] == "0":
    subprocess.run(["scontrol", "requeue", os.environ["LAUNCHER_JOB_ID"]], check=True)
    time.sleep(60)
"""


def test_the_last_task_of_an_array_that_requeues_itself_requeues_itself_alone(sandbox: Sandbox, workdir: Path) -> None:
    """There SLURM_JOB_ID is the id of the whole array."""
    script(workdir, REQUEUES_ITSELF)
    words = ("cluster.env.ARG=first,second,last", "cluster.nproc_per_node=1")
    done = launch_on(sandbox, workdir, "-m", *ONE_RANK, *words, "wait=true", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["attempts"] for row in rows(sandbox, workdir)] == [1, 1, 2]


def interrupted_sbatch(workdir: Path, before: str, after: str) -> dict[str, str]:
    """An environment in which sbatch is the real one, and the command that calls it is killed on the way."""
    real = subprocess.run(["which", "sbatch"], capture_output=True, text=True, check=True).stdout.strip()
    fake = workdir / "bin" / "sbatch"
    fake.parent.mkdir(exist_ok=True)
    asked = f'[ "$1" = --version ] && exec {real} --version'
    fake.write_text(f'#!/bin/bash\n{asked}\nlauncher=$PPID\n{before}\n{real} "$@"\n{after}\n')
    fake.chmod(0o755)
    return {"PATH": f"{fake.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("before", "after", "states", "next_verb"),
    [
        ("", "kill -9 $launcher; sleep 1", {"completed"}, "status"),
        ("kill -9 $launcher; exit 1", "", {"unknown"}, "resume"),
    ],
)
def test_a_command_killed_while_it_submits_loses_no_run(
    sandbox: Sandbox, workdir: Path, before: str, after: str, states: set[str], next_verb: str
) -> None:
    script(workdir, "print('ran')\n")
    variables = {**in_cluster(sandbox), **interrupted_sbatch(workdir, before, after)}
    command = launcher_command("-m", *ONE_RANK, "seed=1,2,3")
    killed = sandbox.run(command, cwd=workdir, env=variables, timeout=PATIENCE * 60)
    assert killed.returncode == -9
    wait_until(lambda: {row["state"] for row in rows(sandbox, workdir)} == states)
    if next_verb == "resume":
        done = launch_on(sandbox, workdir, "resume", sweep_of(workdir).name, "--wait")
        assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: {row["state"] for row in rows(sandbox, workdir)} == {"completed"})
    assert [row["attempts"] for row in rows(sandbox, workdir)] == [1, 1, 1]


def test_a_sweep_can_be_cancelled_and_a_limit_of_runs_at_a_time_holds(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "import time\ntime.sleep(100)\n")
    done = launch_on(sandbox, workdir, "-m", *ONE_RANK, "seed=range(6)", "sweep.parallel=2")
    assert done.returncode == 0, done.stderr
    sweep = sweep_of(workdir)
    wait_until(lambda: len(list(sweep.glob("*/attempts/000/rank-0.log"))) == 2)
    assert sorted(row["state"] for row in rows(sandbox, workdir)) == ["pending"] * 4 + ["running"] * 2
    assert (
        launch_on(sandbox, workdir, "cancel", sweep.name).stdout == f"asked 6 runs of {sweep.name} to save and stop\n"
    )
    wait_until(lambda: {row["state"] for row in rows(sandbox, workdir)} == {"stopped"})


def test_optuna_chooses_what_it_runs_next_by_what_the_last_runs_have_reached(sandbox: Sandbox, workdir: Path) -> None:
    arguments = (
        "hydra/sweeper=optuna", "hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=8",
        "hydra.sweeper.n_jobs=4", "hydra.sweeper.sampler.seed=1", "hydra.sweeper.sampler.n_startup_trials=4",
        "task=cartpole", "cluster=sandbox", "cluster.gpus_per_node=1", "num_envs=16", "max_iterations=4",
        "agent.algorithm.learning_rate=tag(log,interval(1e-5,1e-2))", "seed=1,2,3",
    )  # fmt: skip
    done = launch_on(sandbox, workdir, "-m", *arguments, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(sandbox, workdir)
    assert [row["state"] for row in found] == ["completed"] * 8
    best = (sweep_of(workdir) / "optimization_results.yaml").read_text()
    value = float(re.search(r"best_value: (.*)", best)[1])  # type: ignore[index]
    assert value == pytest.approx(max(row["return_mean"] for row in found))


def test_a_rendered_sweep_is_submitted_by_hand_and_ends_the_same_way(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "import sys\nsys.exit('bad' in sys.argv)\n")
    words = ("-m", *ONE_RANK, "task.args=[good],[bad]", "seed=1,2", "-o", "x.sbatch")
    assert launch_on(sandbox, workdir, "render", *words).returncode == 0
    job = sandbox.run(["sbatch", "--parsable", "x.sbatch"], cwd=workdir, check=True).stdout.strip()
    wait_until(lambda: not sandbox.run(["squeue", "-h", "-j", job], check=True).stdout)
    found = rows(sandbox, workdir)
    assert [row["state"] for row in found] == ["completed"] * 2 + ["failed"] * 2
    assert [row["where"].partition("_")[2] for row in found] == ["0", "1", "2", "3"]
