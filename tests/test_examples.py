"""The examples, as users copy them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, ROOT, Launch, environment, result_of, runs_in
from tests.test_local import metrics_of

DDP = ("task=script", "library=torchrun", f"task.path={ROOT / 'examples' / 'ddp.py'}", "cluster.nproc_per_node=2")


def runs_of(workdir: Path) -> list[Path]:
    return runs_in(workdir / "runs")


def state_of(run: Path, epoch: int) -> dict[str, Any]:
    import torch

    return torch.load(run / "checkpoints" / f"{epoch:09}" / "state.pt", weights_only=True)["model"]


@pytest.mark.train
def test_ddp_trains_saves_and_goes_on_bit_for_bit(launch: Launch, workdir: Path) -> None:
    import torch

    for more in (["task.args={epochs: 6}"], ["task.args={epochs: 3}"], ["task.args={epochs: 6}", "resume=latest"]):
        done = launch(*DDP, *more)
        assert done.returncode == 0, done.stdout + done.stderr
    whole, _, resumed = runs_of(workdir)
    assert (result_of(resumed)["iteration"], result_of(resumed)["ranks_in_sync"]) == (6, True)
    assert [line["iteration"] for line in metrics_of(resumed)] == [4, 5, 6]
    assert metrics_of(whole)[-1]["loss"] < metrics_of(whole)[0]["loss"] / 2
    ends = state_of(whole, 6), state_of(resumed, 6)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.train
def test_ddp_runs_without_the_launcher_too() -> None:
    command = [sys.executable, str(ROOT / "examples" / "ddp.py"), "--epochs", "1"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE * 60
    )
    assert done.returncode == 0, done.stderr
    assert "iteration=1 loss=" in done.stdout
