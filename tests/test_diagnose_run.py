"""All-reduces before a training and without one: real torch with gloo, on this machine and on a real Slurm.

What cannot exist here, an interconnect that hangs, is a fake at the outermost edge: tests/sick_interconnect.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PATIENCE, ROOT, Launch, environment, launcher_command, only_run, result_of, script
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import in_cluster, launch_on

pytestmark = pytest.mark.train

TRAINS = "import os\nprint('trained', os.environ['RANK'])\n"
SICK = ROOT / "tests" / "sick_interconnect"


def sick(**how: Any) -> list[str]:
    """Overrides by which the ranks have such an interconnect."""
    return [f"cluster.env.PYTHONPATH={SICK}", f"cluster.env.SICK_INTERCONNECT='{json.dumps(how)}'"]


def processes_with(mark: str) -> list[str]:
    """Command lines of the live processes that have this in their environment."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


# On this machine


def test_a_healthy_machine_is_told_so_with_its_bandwidth(launch: Launch, workdir: Path) -> None:
    done = launch("nccl", "diagnose", "cluster.device=cpu", "-o", "found")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "healthy: 2 tests" in done.stdout and re.search(r"2 ranks on \S+: ok, [\d.]+ GB/s", done.stderr)
    said = read(workdir / "found")
    assert [trial["world_size"] for trial in said["trials"]] == [1, 2] and said["backend"] == "gloo"
    assert said["trials"][1]["busbw"] > 0 and not said["trials"][1]["ranks"][0]["facts"]["wrong"]
    assert yaml.safe_load((workdir / "found" / "profile.yaml").read_text()) is None


def test_a_rank_that_fails_alone_is_no_matter_of_nccl(launch: Launch, workdir: Path) -> None:
    done = launch("nccl", "diagnose", "--backend", "nccl", "--json", "-o", "found")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert len(said["trials"]) == 1 and "built without CUDA and NCCL" in said["troubles"][0]["what"]
    assert "it fails alone" in (workdir / "found" / "report.txt").read_text()


def test_doctor_full_sums_numbers_over_all_ranks(launch: Launch) -> None:
    done = launch("doctor", "--full", "cluster.nproc_per_node=2", "cluster.device=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"all-reduce over 2 ranks on 1 node through gloo: [\d.]+ GB/s", done.stdout)


def test_doctor_full_names_a_torch_without_cuda_where_gpus_are_asked_for(launch: Launch) -> None:
    done = launch("doctor", "--full", "--json", "cluster.device=cuda", "cluster.nproc_per_node=1")
    assert done.returncode == 1
    (finding,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "torch"]
    assert finding["severity"] == "error" and "built without CUDA" in finding["message"]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_whoever_ends_it_leaves_nothing_running(workdir: Path, end: signal.Signals) -> None:
    mark = f"mark-{os.urandom(4).hex()}"
    words = ["cluster.device=cpu", *sick(world_sizes=[2]), f"cluster.env.MARK={mark}"]
    command = subprocess.Popen(
        launcher_command("nccl", "diagnose", "-o", "found", *words), cwd=workdir, env=environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    with command:
        assert command.stderr is not None and "1 rank on" in command.stderr.readline()
        wait_until(lambda: len(processes_with(f"MARK={mark}")) == 2)
        os.killpg(command.pid, end)
        assert command.wait(PATIENCE * 30) == (130 if end == signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: not processes_with(f"MARK={mark}"), 20)
    if end == signal.SIGINT:
        assert read(workdir / "found")["unfinished"].startswith("interrupted")


def test_ctrl_c_during_the_full_preflight_stops_the_run_before_it_has_begun(workdir: Path) -> None:
    script(workdir, TRAINS)
    mark = f"mark-{os.urandom(4).hex()}"
    words = ["task=script", "library=torchrun", "task.path='train it.py'", "cluster.nproc_per_node=2"]
    full = ["watch.preflight=full", "cluster.device=cpu", *sick(world_sizes=[2]), f"cluster.env.MARK={mark}"]
    command = subprocess.Popen(
        launcher_command(*words, *full), cwd=workdir, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: len(processes_with(f"MARK={mark}")) == 2)
    command.send_signal(signal.SIGINT)
    assert command.wait(PATIENCE * 30) == 130
    result = result_of(only_run(workdir))
    assert (result["outcome"], result["cause"]) == ("stopped", "interrupted")
    assert not processes_with(f"MARK={mark}")
    assert not list((only_run(workdir) / "attempts/000").glob("rank-*.log"))


# On a real Slurm


def diagnosed(sandbox: Sandbox, workdir: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    asked = ("nccl", "diagnose", "cluster=sandbox", "cluster.nproc_per_node=1", "-o", "found", *words)
    return launch_on(sandbox, workdir, *asked, timeout=280)


@pytest.mark.slurm
def test_the_setting_that_cures_a_hang_is_found_exactly_and_proven_both_ways(sandbox: Sandbox, workdir: Path) -> None:
    how = sick(world_sizes=[3], cured_by=["NCCL_ALGO"], slow=0.2)
    done = diagnosed(sandbox, workdir, "cluster.nodes=3", "--deadline=40", *how)
    assert done.returncode == 1, done.stdout + done.stderr
    said = read(workdir / "found")
    (trouble,) = said["troubles"]
    assert (trouble["world_size"], trouble["outcome"], trouble["cure"]) == (3, "hung", ["algo_ring"])
    assert trouble["proven"] and trouble["env"] == {"NCCL_ALGO": "Ring"} and said["cures"] == ["algo_ring"]
    assert trouble["cost"]["shape"] == [1, 1]
    assert 0 < trouble["cost"]["ratio"] < 0.9
    at_three = [(trial["with"], trial["outcome"]) for trial in said["trials"] if trial["world_size"] == 3]
    assert at_three[0] == ([], "hung") and at_three[-3:] == [
        (["algo_ring"], "ok"), ([], "hung"), (["algo_ring"], "ok")
    ]  # fmt: skip
    assert (["p2p_off"], "hung") in at_three
    assert {tuple(trial["shape"]) for trial in said["trials"]} == {(1,), (1, 1), (1, 1, 1)}
    assert yaml.safe_load((workdir / "found" / "profile.yaml").read_text()) == {"nccl": ["algo_ring"]}
    assert [node["host"] for node in said["nodes"]] == said["hosts"]
    assert sandbox.run(["squeue", "-h"]).stdout == ""


@pytest.mark.slurm
@pytest.mark.parametrize("holder", ["alive", "killed"])
def test_ctrl_c_gives_the_nodes_back_at_once(sandbox: Sandbox, workdir: Path, holder: str) -> None:
    """Also when salloc could not tell the controller, as one that was killed cannot."""
    mark = f"mark-{os.urandom(4).hex()}"
    words = ["cluster=sandbox", "cluster.nproc_per_node=1", "cluster.nodes=2", f"cluster.env.MARK={mark}"]
    command = sandbox.popen(
        launcher_command("nccl", "diagnose", "-o", "found", *words, *sick(world_sizes=[2])), cwd=workdir,
        env=in_cluster(sandbox), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    with command:
        wait_until(lambda: len(processes_with(f"MARK={mark}")) == 2)
        if holder == "killed":
            (salloc,) = (pid for pid in children(command.pid) if command_of(pid) == "salloc")
            os.kill(salloc, signal.SIGKILL)
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE * 40) == 130
    assert not processes_with(f"MARK={mark}")
    wait_until(lambda: sandbox.run(["squeue", "-h"]).stdout == "", 20)


HELD_TIME_AND_AGAIN = """\
import time
from launcher.slurm.held import held_allocation
for _ in range(12):
    with held_allocation({}, 2, 5, 60, []) as held:
        time.sleep(0.2)
        began = time.monotonic()
    print(round(time.monotonic() - began, 2))
"""


@pytest.mark.slurm
def test_held_nodes_are_given_back_at_once_every_time(sandbox: Sandbox, workdir: Path) -> None:
    """One salloc in four spun for ever when it got a signal together with its shell's end, and kept the nodes."""
    command = [sys.executable, "-c", HELD_TIME_AND_AGAIN]
    done = sandbox.run(command, cwd=workdir, env=in_cluster(sandbox), timeout=400, check=True)
    assert max(map(float, done.stdout.split())) < PATIENCE * 10


@pytest.mark.slurm
def test_what_slurm_refuses_is_one_line(sandbox: Sandbox, workdir: Path) -> None:
    done = launch_on(sandbox, workdir, "nccl", "diagnose", "cluster=sandbox", "cluster.partition=nix")
    assert done.returncode == 3 and "invalid partition" in done.stderr.splitlines()[-1].lower()
    assert not list(workdir.iterdir())


def trained(sandbox: Sandbox, workdir: Path, words: Sequence[str]) -> Path:
    script(workdir, TRAINS)
    asked = ("task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox", "cluster.nodes=2")
    launch_on(sandbox, workdir, *asked, "cluster.nproc_per_node=1", "wait=true", "watch.preflight=full", *words)
    return only_run(workdir)


def noted(run: Path, event: str) -> list[dict[str, Any]]:
    lines = (run / "attempts/000/events.jsonl").read_text().splitlines()
    return [note for note in map(json.loads, lines) if note["event"] == event]


@pytest.mark.slurm
def test_a_full_preflight_sums_over_two_nodes_and_then_lets_them_train(sandbox: Sandbox, workdir: Path) -> None:
    run = trained(sandbox, workdir, [])
    assert result_of(run)["outcome"] == "completed"
    assert (run / "attempts/000/rank-1.log").read_text() == "trained 1\n"
    assert noted(run, "preflight")[-1]["all_reduce"].startswith("all-reduce over 2 ranks on 2 nodes through gloo: ")


@pytest.mark.slurm
def test_a_rank_that_hangs_in_the_full_preflight_is_named_and_nothing_trains(sandbox: Sandbox, workdir: Path) -> None:
    hanging = sick(world_sizes=[2], ranks=[1], start=True)
    run = trained(sandbox, workdir, ["watch.probe_seconds=25", "retry.node_fail=0", "retry.avoid_node=null", *hanging])
    result = result_of(run)
    assert (result["outcome"], result["cause"]) == ("failed", "preflight")
    assert f"rank 1 ({result['host']}) never got beyond starting its Python" in result["message"]
    assert not list((run / "attempts/000").glob("rank-*.log"))


@pytest.mark.slurm
def test_ranks_that_all_hang_are_no_nodes_fault_and_the_way_on_is_said(sandbox: Sandbox, workdir: Path) -> None:
    run = trained(sandbox, workdir, ["watch.probe_seconds=25", *sick(world_sizes=[2])])
    result = result_of(run)
    assert (result["outcome"], result["cause"]) == ("failed", "setup")
    assert "nccl diagnose" in result["message"] and not list((workdir / "runs").glob(".launcher/bad_nodes*"))
