"""Runs that hang, on a real Slurm: the rank that keeps the others waiting is named with its host and its line."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, only_run, result_of, script, started
from tests.sandbox import Sandbox
from tests.test_local import processes_of
from tests.test_slurm import launch_on

pytestmark = [pytest.mark.slurm, pytest.mark.train]

LIMITS = ("watch.hang_floor=3", "watch.hang_ceiling=4", "watch.hang_first=25", "watch.hang_end=6", "retry.hang=0")
"""The end is never before twice the limit of the suspicion: 8 s, and 50 s before the run is under way."""
PLAIN = """\
import os, signal, sys, threading, time
import torch, torch.distributed as dist

def step():
    number = 0
    while True: number = (number * 3 + 1) % 1000003  # spins

def deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # locks

fault, bad = sys.argv[1], int(sys.argv[2])
if fault == "init" and int(os.environ["RANK"]) == bad:
    time.sleep(600)  # stays away
dist.init_process_group("gloo")
numbers = torch.ones(10)
for iteration in range(10_000):
    if iteration == 200 and dist.get_rank() == bad:
        if fault == "missing":
            time.sleep(600)  # skips
        if fault == "lock":
            deadlock()
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "spin":
            step()
        if fault == "other":
            dist.broadcast(numbers, src=bad)  # differs
    dist.all_reduce(numbers.fill_(1.0))
    time.sleep(0.02)
"""
WITH_RANK = """\
import time
import torch
from launcher.train import Rank

def step():
    while True:
        time.sleep(0.01)  # never done

with Rank("cpu") as rank:
    for iteration in range(10_000):
        if iteration == 100 and rank.rank == 1:
            step()
        time.sleep(0.02)
        rank.progress(iteration + 1)
        rank.should_stop()
"""
SLOW = """\
import time
import torch
from launcher.train import Rank

with Rank("cpu") as rank:
    time.sleep(6)  # the first iteration
    for iteration in range(200):
        rank.progress(iteration + 1)
        rank.should_stop()
        time.sleep(5 if iteration == 100 and rank.rank == 0 else 0.02)  # a checkpoint
"""


LONG = ("watch.hang_first=100", "watch.hang_end=100")
"""A start on a busy machine is no hang."""


@pytest.fixture(scope="module")
def cluster() -> Generator[Sandbox]:
    yield from started(nodes=2, gpus=2, accounting=False)


def run_of(cluster: Sandbox, workdir: Path, text: str, *arguments: str, ranks: int = 1) -> tuple[Path, str]:
    """The directory of a run on two nodes that has ended, and what was printed."""
    script(workdir, text)
    done = launch_on(
        cluster, workdir, "task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox",
        "cluster.nodes=2", "cluster.gpus_per_node=0", f"cluster.nproc_per_node={ranks}", "wait=true",
        *LIMITS, *arguments,
    )  # fmt: skip
    return only_run(workdir), done.stdout + done.stderr


def events(run: Path, *names: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "attempts/000/events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] in names]


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


FORMS = {
    "missing": (1, "it is in <module> at train it.py:{skips} (asleep)"),
    "lock": (1, "it is in deadlock at train it.py:{locks} (asleep)"),
    "stop": (1, "it is stopped (SIGSTOP, or a debugger)"),
    "spin": (0, "it is in step at train it.py:{spins} (busy)"),
    "init": (1, "it is in <module> at train it.py:{stays} (asleep)"),
}
"""By fault the rank that keeps the other one waiting, and what it is said to do."""


@pytest.mark.parametrize("fault", FORMS)
def test_who_keeps_the_others_waiting_is_named_in_an_unmodified_script(
    cluster: Sandbox, workdir: Path, fault: str
) -> None:
    bad, place = FORMS[fault]
    soon = ["watch.hang_first=12"] if fault == "init" else []  # it never gets beyond its start
    run, printed = run_of(cluster, workdir, PLAIN, f"task.args=[{fault},{bad}]", *soon)
    result = result_of(run)
    lines = {mark: line_of(PLAIN, f"# {mark}") for mark in ("skips", "locks", "spins", "stays")}
    assert (result["outcome"], result["cause"], result["signal"], result["exit_code"]) == ("failed", "hang", None, None)
    assert (result["rank"], result["host"]) == (bad, f"node{bad + 1}")
    waits, blamed = result["message"].split("; ")
    where = "init_process_group" if fault == "init" else r"all_reduce #\d+"
    assert re.fullmatch(f"rank {1 - bad} waits in {where}", waits)
    assert blamed.startswith(f"rank {bad} (node{bad + 1}) never entered it: {place.format(**lines)}")
    assert f"failed: hang: {result['message']}" in printed
    assert "stacks-RANK.txt" in result["hint"]
    stacks = (run / f"attempts/000/stacks-{1 - bad}.txt").read_text()
    assert "train it.py" in stacks and "distributed_c10d.py" in stacks
    *_, suspicion, hang = events(run, "suspicion", "hang")  # on a busy machine there may have been one that was none
    assert suspicion["message"] == hang["message"]
    assert suspicion["limit_s"] < hang["limit_s"] <= hang["seconds"] < hang["limit_s"] + PATIENCE * 4
    (ended,) = events(run, "verdict")
    assert ended["time"] - hang["time"] < PATIENCE * 5
    assert not processes_of(run)


def test_the_odd_one_of_four_ranks_in_another_collective_is_named(cluster: Sandbox, workdir: Path) -> None:
    run, _ = run_of(cluster, workdir, PLAIN, "task.args=[other,2]", ranks=2)
    result = result_of(run)
    assert (result["cause"], result["rank"], result["host"]) == ("hang", 2, "node2")
    pattern = r"ranks 0,1,3 wait in all_reduce #(\d+); rank 2 \(node2\) is in another one, (\w+) #(\d+): "
    found = re.match(pattern, result["message"])
    assert found, result["message"]
    assert (found[1], found[2]) == (found[3], "broadcast")
    assert f"train it.py:{line_of(PLAIN, '# differs')}" in result["message"]


def test_a_training_that_tells_of_its_progress_hangs_at_an_iteration_and_starts_again(
    cluster: Sandbox, workdir: Path
) -> None:
    run, printed = run_of(cluster, workdir, WITH_RANK, "retry.hang=2")
    first, last = (json.loads(path.read_text()) for path in sorted(run.glob("attempts/*/verdict.json")))
    assert (first["cause"], first["rank"], first["iteration"]) == ("hang", 1, 101)
    assert f"it is in step at train it.py:{line_of(WITH_RANK, '# never done')}" in first["message"]
    assert first["then"] == "again in this job"
    assert last["then"] == "ended: it failed at the same iteration before"
    assert "iteration 101" in printed


def test_a_slow_first_iteration_and_a_slow_checkpoint_are_no_hang(cluster: Sandbox, workdir: Path) -> None:
    run, _ = run_of(cluster, workdir, SLOW, *LONG, "watch.hang_floor=15", "watch.hang_ceiling=30")
    assert result_of(run)["outcome"] == "completed"
    assert not events(run, "suspicion", "hang")


def test_a_suspicion_is_said_once_and_taken_back_when_the_run_moves_again(cluster: Sandbox, workdir: Path) -> None:
    run, _ = run_of(
        cluster, workdir, SLOW.replace("sleep(5 ", "sleep(12 "), *LONG, "watch.hang_floor=5", "watch.hang_ceiling=6"
    )
    assert result_of(run)["outcome"] == "completed"
    assert [event["event"] for event in events(run, "suspicion", "moves_again", "hang")] == ["suspicion", "moves_again"]
    said = "".join(path.read_text() for path in (run / "slurm").iterdir() if path.suffix == ".out")
    assert said.count("it may hang: nothing moves since") == 1
    assert "it moves again" in said
