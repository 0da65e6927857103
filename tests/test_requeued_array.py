"""An array of runs that Slurm requeues again and again, whatever each of them is doing: waiting, training, done.

The everyday form requeues 15 times. The full form: ``REQUEUES=100 python -m pytest -s tests/test_requeued_array.py``;
``REQUEUES_SEED=N`` chooses other tasks and moments.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import script, started
from tests.sandbox import Sandbox
from tests.survival import EVERY, TRAINING
from tests.test_local import metrics_of, wait_until
from tests.test_slurm import launch_on
from tests.test_sweeps import ONE_RANK, rows

COUNT = int(os.environ.get("REQUEUES", "15"))
SEED = int(os.environ.get("REQUEUES_SEED", "0"))
RUNS = 8
LAST = 100 + 4 * COUNT

pytestmark = [pytest.mark.slurm, pytest.mark.train, pytest.mark.timeout(600 + 8 * COUNT)]

ALONE = """\
import fcntl, os
held = open(os.path.join(os.environ["LAUNCHER_RUN_DIR"], "held"), "a")
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where another process trains the same run
"""


@pytest.fixture(scope="module")
def cluster() -> Generator[Sandbox]:
    yield from started(nodes=2, gpus=4)


def test_random_requeues_of_an_array_lose_no_run_and_double_none(cluster: Sandbox, workdir: Path) -> None:
    script(workdir, ALONE + TRAINING)
    done = launch_on(cluster, workdir, "-m", *ONE_RANK, f"task.args=[{EVERY},{LAST},0]", f"seed=range({RUNS})")
    assert done.returncode == 0, done.stderr
    jobs = {row["where"]: Path(row["run_dir"]) for row in rows(cluster, workdir)}
    runs = list(jobs.values())
    wait_until(lambda: any((run / "metrics.jsonl").exists() for run in runs))
    chosen = random.Random(SEED)
    states = requeue_at_random(cluster, list(jobs), chosen, COUNT * 2 // 3)
    wait_until_idle(cluster)
    ends = [end_of(run) for run in runs]
    states += requeue_at_random(cluster, list(jobs), chosen, COUNT - states.total())
    wait_until_idle(cluster)
    causes = Counter(verdict["cause"] for run in runs for verdict in verdicts_of(run))
    print(f"\nrequeued while {dict(states)}; causes {dict(causes)}", flush=True)
    shown = cluster.run(["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T"], check=True).stdout.split()
    assert sorted(shown) == sorted(f"{job}|COMPLETED" for job in jobs)
    for run in runs:
        assert_ended_once(run)
    assert [end_of(run) for run in runs] == ends


def requeue_at_random(cluster: Sandbox, jobs: list[str], chosen: random.Random, count: int) -> Counter[str]:
    """Returns what the tasks were doing. Those that wait in the queue do not count: Slurm refuses to requeue them."""
    states: Counter[str] = Counter()
    while states.total() < count:
        time.sleep(chosen.uniform(0, 2))  # the moments are what is random here; nothing is waited for
        job = chosen.choice(jobs)
        state = cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"], check=True).stdout.strip()
        states[state] += cluster.run(["scontrol", "requeue", job]).returncode == 0
    return +states


def wait_until_idle(cluster: Sandbox) -> None:
    wait_until(lambda: not cluster.run(["squeue", "-h"], check=True).stdout, 120 + COUNT)


def end_of(run: Path) -> tuple[int, int]:
    """The result's file and the moment of its writing: another one if the run was ended again."""
    found = (run / "result.json").stat()
    return found.st_ino, found.st_mtime_ns


def verdicts_of(run: Path) -> list[dict[str, Any]]:
    """Of all attempts."""
    return [json.loads((attempt / "verdict.json").read_text()) for attempt in sorted(run.glob("attempts/*"))]


def assert_ended_once(run: Path) -> None:
    *before, last = verdicts_of(run)
    assert (last["outcome"], last["iteration"], last["then"]) == ("completed", LAST, "ended"), last
    assert {verdict["then"] for verdict in before} <= {"requeued by Slurm"}, before
    assert [line["iteration"] for line in metrics_of(run)] == list(range(1, LAST + 1))
    assert json.loads((run / "result.json").read_text()) == last
