"""Trackers, for real: MLflow into a file, Weights & Biases offline."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import quote
from tests.conftest import Launch, only_run, result_of, script
from tests.test_local import SCRIPT

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's server is not here; its store of plain files is, and wants to be asked for."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


TRAIN = """\
import json, os, time
from launcher.train import Rank
with Rank("cpu") as rank:
    for iteration in range(1, 4):
        rank.progress(iteration, loss=1.0 / iteration)
"""


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
    import subprocess

    from tests.conftest import environment

    script(workdir, TRAIN)
    uri = str(workdir.parent / "mlruns")
    assert launch(*SCRIPT, f"tracking.mlflow.uri='{uri}'").returncode == 0
    again = [sys.executable, "-m", "launcher.node", str(only_run(workdir))]
    subprocess.run(again, env=environment(), check=True, capture_output=True)
    ((_, history),) = tracked(uri)
    assert [point.step for point in history] == [1, 2, 3]


def test_wandb_gets_one_offline_run_with_the_runs_id(launch: Launch, workdir: Path) -> None:
    pytest.importorskip("wandb")
    script(workdir, TRAIN)
    done = launch(*SCRIPT, "cluster.nproc_per_node=2", "tracking.wandb.project=test", "tracking.wandb.mode=offline")
    assert done.returncode == 0, done.stderr
    run = only_run(workdir)
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    assert file.name == f"run-{run.name}.wandb"
    assert b"loss" in file.read_bytes()


def test_a_tracker_that_fails_or_hangs_does_not_touch_the_training(launch: Launch, workdir: Path) -> None:
    script(workdir, TRAIN)
    (workdir / "mlflow.py").write_text("import time\ntime.sleep(1000)\n")
    began = time.monotonic()
    done = launch(*SCRIPT, "tracking.mlflow.uri=x", f"cluster.env.PYTHONPATH={quote(str(workdir))}")
    assert done.returncode == 0
    assert result_of(only_run(workdir))["outcome"] == "completed"
    assert time.monotonic() - began < 60
    assert len((only_run(workdir) / "metrics.jsonl").read_text().splitlines()) == 3
    assert json.loads((only_run(workdir) / "result.json").read_text())["seconds"] < 60
