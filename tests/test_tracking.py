"""Trackers, for real: MLflow into a file, Weights & Biases offline."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.config.literals import quote
from tests.conftest import PATIENCE, Launch, environment, launcher_command, only_run, result_of, script
from tests.sandbox import Sandbox
from tests.test_local import SCRIPT, metrics_of, processes_of, wait_until
from tests.test_slurm import job_of, launch_on
from tests.wandb_server import WandbServer, wandb_server

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's server is not here; its store of plain files is, and wants to be asked for."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


TRAIN = """\
import os
from launcher.train import Rank
with Rank("cpu") as rank:
    done = 2 * int(os.environ["LAUNCHER_ATTEMPT"])  # a second attempt repeats an iteration
    for iteration in range(done + 1, done + 4):
        rank.progress(iteration, loss=1.0 / iteration)
"""

UNTIL_ASKED = """\
import os, time
import torch
from launcher.train import Rank
with Rank("cpu") as rank:
    state, _ = rank.checkpoints.load(rank.device) or ({"iteration": 0}, None)
    more = 10**6 if os.environ["LAUNCHER_ATTEMPT"] == "0" else 40
    for iteration in range(state["iteration"] + 1, state["iteration"] + 1 + more):
        rank.progress(iteration, loss=1.0 / iteration)
        if rank.should_stop():
            rank.checkpoints.save(iteration, {"iteration": iteration})
            rank.report()
            break
        time.sleep(0.05)
"""


def another_attempt(run: Path, **extra: str) -> None:
    """Start a run again, as a requeue does."""
    command = [sys.executable, "-m", "launcher.node", str(run)]
    subprocess.run(command, env=environment(**extra), check=True, capture_output=True, timeout=120)


def tracked(uri: str) -> list[Any]:
    """The runs in an MLflow store."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("launcher")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    return [(run, client.get_metric_history(run.info.run_id, "loss")) for run in runs]


def test_the_metrics_of_a_run_are_one_run_of_mlflow_whatever_the_number_of_ranks(launch: Launch, workdir: Path) -> None:
    pytest.importorskip("mlflow")
    script(workdir, TRAIN)
    uri = str(workdir.parent / "mlruns")
    done = launch(*SCRIPT, "cluster.nproc_per_node=2", f"tracking.mlflow.uri='{uri}'")
    assert done.returncode == 0, done.stderr
    ((run, history),) = tracked(uri)
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, 1.0 / 3)]
    assert run.data.tags["launcher"] == only_run(workdir).name
    assert run.info.status == "FINISHED"


def test_another_attempt_goes_on_with_the_tracked_run_and_repeats_nothing(launch: Launch, workdir: Path) -> None:
    pytest.importorskip("mlflow")
    script(workdir, TRAIN)
    uri = str(workdir.parent / "mlruns")
    assert launch(*SCRIPT, f"tracking.mlflow.uri='{uri}'").returncode == 0
    another_attempt(only_run(workdir))
    ((_, history),) = tracked(uri)
    assert [(point.step, point.value) for point in history] == [(step, 1.0 / step) for step in range(1, 6)]


def test_wandb_gets_one_offline_run_with_the_runs_id(launch: Launch, workdir: Path) -> None:
    pytest.importorskip("wandb")
    script(workdir, TRAIN)
    done = launch(*SCRIPT, "cluster.nproc_per_node=2", *wandb_in("offline"))
    assert done.returncode == 0, done.stderr
    run = only_run(workdir)
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    assert file.name == f"run-{run.name}.wandb"
    assert b"loss" in file.read_bytes()


def wandb_in(mode: str) -> tuple[str, str]:
    return "tracking.wandb.project=test", f"tracking.wandb.mode={mode}"


def client_of(server: WandbServer) -> dict[str, str]:
    """The environment in which W&B's client takes the stand-in for its server, and reports to nobody else."""
    return {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "x" * 40, "WANDB_ERROR_REPORTING": "false"}


def steps_at(server: WandbServer, run: Path) -> list[int]:
    """The steps of the one tracked run that the server has, when all is uploaded."""
    command = [sys.executable, "-m", "wandb", "sync", "--yes"]
    done = subprocess.run(command, cwd=run, env=environment(**client_of(server)), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert list(server.runs) == [run.name]
    return [line["_step"] for line in server.history(run.name) if "loss" in line]


@pytest.mark.parametrize(("mode", "parts"), [("offline", 2), ("online", 0)])
def test_two_attempts_are_one_run_of_wandb(launch: Launch, workdir: Path, mode: str, parts: int) -> None:
    pytest.importorskip("wandb")
    script(workdir, TRAIN)
    with wandb_server() as server:
        assert launch(*SCRIPT, *wandb_in(mode), **client_of(server)).returncode == 0
        another_attempt(only_run(workdir), **client_of(server))
        assert len(list(only_run(workdir).glob("wandb/offline-run-*"))) == parts
        assert steps_at(server, only_run(workdir)) == [1, 2, 3, 4, 5]


def wait_for_wandb(run: Path) -> None:
    """Until W&B's own process runs and has been told of metrics: the tracker looks for them every second."""
    wait_until(lambda: (run / "metrics.jsonl").exists() and list(run.glob("wandb/*run-*/*.wandb")))
    seen = len(metrics_of(run))
    wait_until(lambda: len(metrics_of(run)) > seen + 60)


def signal_all(run: Path, number: int) -> None:
    """Signal the agent, the ranks, the tracker, and what these have started: all that a job has, as Slurm does."""
    agent = json.loads((run / "submission.json").read_text())["pid"]
    for process in (*processes_of(run), agent):
        os.kill(process, number)


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_wandb_loses_nothing_when_its_own_process_is_signalled(workdir: Path, mode: str) -> None:
    pytest.importorskip("wandb")
    script(workdir, UNTIL_ASKED)
    with wandb_server() as server:
        command = launcher_command(*SCRIPT, *wandb_in(mode))
        started = subprocess.Popen(command, cwd=workdir, env=environment(**client_of(server)))
        wait_until(lambda: list(workdir.glob("runs/*/metrics.jsonl")))
        run = only_run(workdir)
        wait_for_wandb(run)
        signal_all(run, signal.SIGTERM)
        started.wait(PATIENCE * 60)
        assert result_of(run)["outcome"] == "stopped"
        stopped = result_of(run)["iteration"]
        assert steps_at(server, run) == list(range(1, stopped + 1))
        another_attempt(run, **client_of(server))
        assert steps_at(server, run) == list(range(1, stopped + 41))


@pytest.mark.slurm
def test_a_requeued_job_is_one_run_of_wandb(sandbox: Sandbox, workdir: Path) -> None:
    pytest.importorskip("wandb")
    script(workdir, UNTIL_ASKED)
    arguments = (*SCRIPT, "cluster=sandbox", "cluster.nproc_per_node=1", *wandb_in("offline"))
    assert launch_on(sandbox, workdir, *arguments).returncode == 0
    run = only_run(workdir)
    wait_for_wandb(run)
    sandbox.run(["scontrol", "requeue", job_of(run)], check=True)
    wait_until((run / "attempts/001/rendezvous.json").exists, 90)  # which takes back the first attempt's verdict
    wait_until((run / "result.json").exists, 90)
    assert (result_of(run)["outcome"], result_of(run)["attempts"]) == ("completed", 2)
    with wandb_server() as server:
        assert steps_at(server, run) == [line["iteration"] for line in metrics_of(run)]


def test_a_tracker_that_fails_or_hangs_does_not_touch_the_training(launch: Launch, workdir: Path) -> None:
    script(workdir, TRAIN)
    (workdir / "mlflow.py").write_text("import time\ntime.sleep(1000)\n")
    began = time.monotonic()
    done = launch(*SCRIPT, "tracking.mlflow.uri=x", f"cluster.env.PYTHONPATH={quote(str(workdir))}")
    assert done.returncode == 0
    assert result_of(only_run(workdir))["outcome"] == "completed"
    assert time.monotonic() - began < PATIENCE * 60
    assert len((only_run(workdir) / "metrics.jsonl").read_text().splitlines()) == 3
    assert json.loads((only_run(workdir) / "result.json").read_text())["seconds"] < PATIENCE * 60
