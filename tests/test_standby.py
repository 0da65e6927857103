"""Forked ranks that start again do so in a process that has imported everything already; nobody else can tell."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch, only_run, result_of, script
from tests.test_local import SCRIPT, processes_of

AGAIN = """\
import json, os, random, signal, sys, time
from pathlib import Path
import numpy as np
import torch
from launcher.node.processes import children
from launcher.train import Rank

def words(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\\0").split("\\0")

def frames():
    frame, count = sys._getframe(), 0
    while frame := frame.f_back:
        count += 1
    return count

waiting = [pid for pid in children(os.getppid()) if "--standby" in words(pid)]
facts = {"argv": sys.argv, "shown": words("self"), "path": sys.path, "tasks": len(os.listdir("/proc/self/task"))}
facts |= {"threads": torch.get_num_threads(), "seed": torch.initial_seed(), "leads": os.getpid() == os.getsid(0)}
facts |= {"signals": [str(signal.getsignal(number)) for number in range(1, 32)], "torchrun": words(os.getppid())[:4]}
facts |= {"files": len(os.listdir("/proc/self/fd")), "frames": frames(), "variables": sorted(os.environ)}
facts |= {"torchruns": [os.getppid(), waiting], "random": [random.random(), float(np.random.rand())]}
print("FACTS", json.dumps(facts), flush=True)
with Rank("cpu") as rank:
    found, attempt = rank.checkpoints.load(rank.device), int(os.environ["LAUNCHER_ATTEMPT"])
    for done in range(found[0]["iteration"] + 1 if found else 1, 80):
        rank.progress(done)
        if done % 20 == 0:
            rank.checkpoints.save(done, {"iteration": done})
        if done == 20 * attempt + 35 and attempt < FAILURES:
            KILL
            sys.exit(5)
    rank.report("max_iterations")
"""
FORKED = (*SCRIPT, "cluster.start=fork", "cluster.nproc_per_node=2", "retry.crash=3")


def facts_of(run: Path, attempts: int) -> list[list[dict[str, Any]]]:
    """By attempt and rank."""
    logs = [[run / f"attempts/{attempt:03}/rank-{rank}.log" for rank in (0, 1)] for attempt in range(attempts)]
    return [[json.loads(log.read_text().partition("FACTS ")[2].splitlines()[0]) for log in each] for each in logs]


def program(workdir: Path, failures: int, kill: str = "pass") -> None:
    script(workdir, AGAIN.replace("FAILURES", str(failures)).replace("KILL", kill))


@pytest.mark.train
def test_ranks_that_start_again_import_nothing_anew_and_are_what_the_first_ones_were(
    launch: Launch, workdir: Path
) -> None:
    program(workdir, failures=2)
    done = launch(*FORKED)
    assert done.returncode == 0, done.stdout + done.stderr
    attempts = facts_of(only_run(workdir), 3)
    torchruns = [rank[0].pop("torchruns") for rank in attempts]
    assert [torchrun for torchrun, _ in torchruns[1:]] == [waiting for _, [waiting] in torchruns[:-1]]
    assert len({json.dumps(rank.pop("random")) for ranks in attempts for rank in ranks}) == 6
    for ranks in attempts:
        ranks[1].pop("torchruns")
    assert attempts[0] == attempts[1] == attempts[2]
    assert not processes_of(only_run(workdir))


@pytest.mark.train
@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP])
def test_where_the_one_that_waits_was_killed_or_is_stuck_a_new_torchrun_takes_its_place(
    launch: Launch, workdir: Path, which: signal.Signals
) -> None:
    program(workdir, 1, f"[os.kill(pid, {int(which)}) for pid in waiting]")
    done = launch(*FORKED)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (ranks[0]["torchruns"] for ranks in facts_of(only_run(workdir), 2))
    assert second[0] not in (first[0], *first[1])
    assert result_of(only_run(workdir))["attempts"] == 2
    assert not processes_of(only_run(workdir))


@pytest.mark.train
def test_spawned_ranks_start_again_in_a_process_of_their_own(launch: Launch, workdir: Path) -> None:
    program(workdir, failures=1)
    assert launch(*FORKED, "cluster.start=spawn").returncode == 0
    first, second = (ranks[0]["torchruns"] for ranks in facts_of(only_run(workdir), 2))
    assert first[1] == second[1] == [] and first[0] != second[0]


@pytest.mark.train
def test_the_one_that_waits_ends_with_an_agent_that_is_killed(launch: Launch, workdir: Path) -> None:
    agent = "int(Path(f'/proc/{os.getppid()}/stat').read_text().rpartition(')')[2].split()[1])"
    program(workdir, 1, f"os.kill({agent}, {int(signal.SIGKILL)})")
    assert launch(*FORKED).returncode == 1
    assert not [words for words in processes_of(only_run(workdir)).values() if "--standby" in words]
