"""From the exit of a rank with code 7, the others asleep in a collective, to the end of the job. The goal is 3 s.

``python -m tests.benchmarks.failure [ROUNDS]``: two nodes of a private Slurm cluster, two ranks each, gloo. Beside it
the same script under `srun --kill-on-bad-exit=1 torchrun` by hand, whose code tells nothing. Each round is one job of
either kind, so that a slow moment of the machine meets both.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import in_cluster, launch_on

_GOAL_S = 3.0
_JOB = """\
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 2:
    time.sleep(2)
    Path("failing").write_text(str(time.time()))
    os.rename("failing", "failed")
    os._exit(7)
dist.all_reduce(torch.ones(1))
"""
_BY_HAND = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=4 --mem=4G --time=10 --output=out
export MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 bash -c 'exec {python} -m torch.distributed.run --nnodes=2 --nproc-per-node=2 \\
    --node-rank="$SLURM_NODEID" --master-addr="$MASTER" --master-port=29517 job.py'
"""
_OURS = (
    "task=script", "library=torchrun", "task.path=job.py", "cluster=sandbox", "cluster.nodes=2",
    "cluster.nproc_per_node=2", "cluster.gpus_per_node=0", "wait=true",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Measure and print; returns 1 when the goal is missed."""
    rounds = int(arguments[0]) if arguments else 3
    with Sandbox.start(nodes=2) as cluster, tempfile.TemporaryDirectory() as directory:
        measured = [_round(cluster, Path(directory) / str(number)) for number in range(rounds)]
    by_hand, verdict, command = (list(column) for column in zip(*measured))
    print(f"by hand: the job has ended after {_shown(by_hand)}")
    print(f"ours: the verdict, with code, rank and host, after {_shown(verdict)} (goal: {_GOAL_S:g} s)")
    print(f"ours: the command that follows the job has ended after {_shown(command)}")
    return int(statistics.median(verdict) > _GOAL_S)


def _shown(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"


def _round(cluster: Sandbox, directory: Path) -> tuple[float, float, float]:
    """Seconds from the rank's exit."""
    directory.mkdir()
    (directory / "job.py").write_text(_JOB)
    (directory / "by_hand.sh").write_text(_BY_HAND.format(python=sys.executable))
    cluster.run(["sbatch", "by_hand.sh"], cwd=directory, env=in_cluster(cluster), check=True)
    by_hand = _ended(cluster) - _failed(directory)
    done = launch_on(cluster, directory, *_OURS)
    command, failed = time.time(), _failed(directory)
    (result,) = directory.glob("runs/*/result.json")
    said = json.loads(result.read_text())
    assert done.returncode == 1 and (said["exit_code"], said["rank"], said["host"]) == (7, 2, "node2"), said
    return by_hand, result.stat().st_mtime - failed, command - failed


def _ended(cluster: Sandbox) -> float:
    wait_until(lambda: not cluster.run(["squeue", "-h"]).stdout)
    return time.time()


def _failed(directory: Path) -> float:
    moment = float((directory / "failed").read_text())
    with contextlib.suppress(FileNotFoundError):
        (directory / "failed").unlink()
    return moment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
