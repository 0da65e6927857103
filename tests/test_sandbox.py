"""The sandbox itself: a real cluster comes up, breaks as told, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from tests.sandbox import Sandbox, SandboxError, SandboxUnavailable, install
from tests.sandbox.leftovers import left_of, namespaces_of, processes_of

pytestmark = pytest.mark.slurm

REPOSITORY = Path(__file__).resolve().parents[1]
COMMAND_LINE = [sys.executable, "-m", "tests.sandbox"]
NODES = ("node2", "node9", "node10")  # their order as numbers is not their order as texts


@pytest.fixture(scope="module")
def running() -> Iterator[Sandbox]:
    # A dead node is noticed in 9 to 17 s instead of 30, a preempted job is killed at once.
    with Sandbox.start(NODES, slurmd_timeout=3, grace=0, extra_conf="MessageTimeout=3") as sandbox:
        yield sandbox


@pytest.fixture
def cluster(running: Sandbox) -> Iterator[Sandbox]:
    """A cluster without jobs."""
    yield running
    running.run(["scancel", "--user=root"], check=True)


def eventually(ready: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + PATIENCE * seconds
    while not ready():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def output(sandbox: Sandbox, *command: str) -> str:
    done = sandbox.run(command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def batch(sandbox: Sandbox, directory: Path, script: str, *options: str) -> str:
    """Submit a script; return the job's id."""
    file = directory / "job.sh"
    file.write_text(f"#!/bin/bash\n{script}\n")
    return output(
        sandbox, "sbatch", "--parsable", f"--chdir={directory}", "-oout", "--open-mode=append", *options, str(file)
    )


# A cluster with real nodes


def test_every_node_is_a_machine_of_its_own(cluster: Sandbox) -> None:
    names = output(cluster, "srun", "-N3", "-l", "hostname").splitlines()
    assert sorted(names) == ["0: node2", "1: node9", "2: node10"]
    assert output(cluster, "hostname") == "ctl"
    addresses = {node: cluster.on(node, ["getent", "hosts", node]).stdout.split()[0] for node in NODES}
    assert len(set(addresses.values())) == 3
    assert cluster.on("node9", ["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
    cluster.on("node9", ["touch", "/dev/shm/mine"], check=True)
    assert cluster.on("node2", ["test", "-e", "/dev/shm/mine"]).returncode == 1


def test_jobs_get_the_gpus_they_ask_for(cluster: Sandbox, tmp_path: Path) -> None:
    show = 'echo "$SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"'
    for request, given in (("--gpus-per-node=2", "0,1 0,1 2\n"), ("--gres=gpu:a100:1", "0 0 1\n")):
        (tmp_path / "out").unlink(missing_ok=True)
        batch(cluster, tmp_path, show, request)
        eventually(lambda: text(tmp_path / "out") != "", "the job's output")
        assert text(tmp_path / "out") == given
    refused = cluster.run(["srun", "--gpus-per-node=3", "true"])
    assert refused.returncode != 0
    assert "configuration is not available" in refused.stderr


def test_accounting_knows_a_finished_job(cluster: Sandbox, tmp_path: Path) -> None:
    job = batch(cluster, tmp_path, "exit 3")
    query = ("sacct", "-nXPj", job, "-ostate,exitcode")
    eventually(lambda: output(cluster, *query) == "FAILED|3:0", "the job's end in sacct")


def test_a_preempted_job_is_requeued_under_its_id(cluster: Sandbox, tmp_path: Path) -> None:
    job = batch(cluster, tmp_path, "echo $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}; sleep 300", "-N3", "--exclusive")
    log = tmp_path / "out"
    eventually(lambda: text(log) == f"{job} 0\n", "the first run")
    output(cluster, "srun", "-phigh", "-N3", "--exclusive", "true")
    assert f"JOB {job} ON node2 CANCELLED" in text(log)
    eventually(lambda: text(log).endswith(f"{job} 1\n"), "the second run")


# Faults


def test_a_node_that_lost_power_is_down_until_it_boots_again(cluster: Sandbox) -> None:
    held = cluster.popen(["srun", "-wnode9", "sleep", "300"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    eventually(lambda: "sleep" in cluster.on("node9", ["ps", "ax"]).stdout, "the step")
    cluster.fail("node9")
    with pytest.raises(SandboxError, match="node9 is down"):
        cluster.on("node9", ["true"])
    eventually(lambda: cluster.state("node9") == "down*", "Slurm's notice", 30)
    assert "Node failure on node9" in held.communicate(timeout=PATIENCE * 20)[1]
    cluster.recover("node9")
    assert output(cluster, "srun", "-wnode9", "hostname") == "node9"


def test_steps_outlive_a_crashed_slurmd(cluster: Sandbox, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    batch(cluster, tmp_path, "while sleep 0.05; do date +%N > beat; done", "-wnode2")
    eventually(beat.exists, "the job's start")
    cluster.crash("node2")
    assert cluster.on("node2", ["pgrep", "-x", "slurmd"]).returncode == 1
    seen = text(beat)
    eventually(lambda: text(beat) not in ("", seen), "a sign of life of the step", 2)
    cluster.recover("node2")
    assert cluster.on("node2", ["pgrep", "-x", "slurmd"]).returncode == 0


def test_a_partitioned_node_cannot_be_reached_until_healed(cluster: Sandbox) -> None:
    connect = ["timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/node10/6818"]
    eventually(lambda: cluster.run(connect).returncode == 0, "a connection", 5)
    cluster.partition("node10")
    assert cluster.run(connect).returncode != 0
    assert cluster.on("node10", ["hostname"]).stdout == "node10\n"
    cluster.heal("node10")
    eventually(lambda: cluster.run(connect).returncode == 0, "the network", 5)


# Commands


def test_commands_run_where_and_as_told(cluster: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    odd = tmp_path / "a b;'$x"
    odd.mkdir()
    done = cluster.run(["sh", "-c", 'pwd; echo "$1${SLURM_JOB_ID-}"; echo err >&2; exit 5', "sh", "a  b\n$c"], cwd=odd)
    assert (done.returncode, done.stdout, done.stderr) == (5, f"{odd}\na  b\n$c\n", "err\n")
    assert cluster.run(["/usr/bin/env"], env={"ONLY": "this"}).stdout == "ONLY=this\n"
    with pytest.raises(ValueError, match="no node 'node1' here, only node2, node9, node10"):
        cluster.on("node1", ["true"])


def test_a_command_is_killed_at_its_timeout(cluster: Sandbox) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run(["sh", "-c", "sleep 98765 & wait"], timeout=0.3)
    eventually(lambda: cluster.run(["pgrep", "-f", "sleep 9876[5]"]).returncode == 1, "its children's end", 2)


def test_signals_reach_the_command_itself(cluster: Sandbox) -> None:
    script = "trap 'echo INT; exit 4' INT; echo ready; while :; do sleep 0.05; done"
    process = cluster.popen(["bash", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE * 5)[0] == "INT\n"
    assert process.returncode == 4


# Beginning and end


def test_two_sandboxes_side_by_side_and_nothing_left_of_the_second(
    cluster: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / f"blank 'quote %n {'x' * 120}"  # longer than the path of a socket may be
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with Sandbox.start(["node2", "b"], gpus=0, accounting=False, keep_logs=tmp_path / "logs") as second:
        ids = [int(batch(sandbox, tmp_path, "sleep 300")) for sandbox in (cluster, second)]
        assert ids[0] < ids[1]
        assert [output(sandbox, "squeue", "-ho%i") for sandbox in (cluster, second)] == [str(job) for job in ids]
        eventually(lambda: output(second, "squeue", "-ho%t") == "R", "the job's start")
        unreaped = second.popen(["sleep", "300"])
        namespaces = namespaces_of(processes_of(second.root))
        assert len(namespaces) >= 3 * 4  # login node and two nodes, each with four
        assert left_of(second.root, namespaces)
    assert left_of(second.root, namespaces) == []
    assert unreaped.wait() == -signal.SIGKILL
    assert "slurmctld version" in text(tmp_path / "logs" / "slurmctld.log")
    second.stop()


@pytest.mark.parametrize("when", ["starting", "started"])
def test_nothing_is_left_of_a_killed_starter(when: str, tmp_path: Path) -> None:
    program = (
        "from tests.sandbox import Sandbox; s = Sandbox.start(2, accounting=False); print(1); s.popen(['cat']).wait()"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command, pipe = [sys.executable, "-uc", program], subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdin=pipe, stdout=pipe) as starter:
        eventually(lambda: any(tmp_path.glob("*/log/slurmctld.log")), "its beginning")
        if when == "started":
            assert starter.stdout is not None
            assert starter.stdout.readline() == b"1\n"
        root = next(tmp_path.iterdir())
        namespaces = namespaces_of(processes_of(root))
        assert left_of(root, namespaces)
        starter.kill()
    eventually(lambda: not left_of(root, namespaces), "the end of everything", 10)


def test_a_broken_configuration_is_told_at_once_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    began = time.monotonic()
    with pytest.raises(SandboxError, match=r"slurmctld: ended with 1\n(?s:.*)NoSuchKey"):
        Sandbox.start(1, accounting=False, extra_conf="NoSuchKey=1")
    assert time.monotonic() - began < PATIENCE * 5
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="not a name for a node: 'ctl'"):
        Sandbox.start(["ctl"])


def test_what_is_missing_is_named_with_the_command_that_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(SandboxUnavailable, match="run it as root"):
            Sandbox.start(1)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(install, "_ADMINISTRATOR_PATH", "/nowhere")
    with pytest.raises(SandboxUnavailable, match=r"slurmctld .* munge .*: sudo python -m tests\.sandbox install"):
        Sandbox.start(1)


# The command line


def test_shell_runs_a_command_and_returns_its_code() -> None:
    script = "hostname; env; scontrol show hostnames $(sinfo -h -pmain -o%N); exit 7"
    command = [*COMMAND_LINE, "shell", "--names=b,a10", "--gpus=1", "--no-accounting", "--", "bash", "-c", script]
    environment = os.environ | {"SLURM_JOB_ID": "1", "SBATCH_QOS": "x", "MINE": "a,b"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[0], lines[-2:]) == (7, "", "ctl", ["a10", "b"])
    assert [line.partition("=")[0] for line in lines if line.startswith(("SLURM", "SBATCH"))] == ["SLURM_CONF"]
    assert {"MINE=a,b", f"PATH={os.environ['PATH']}"} <= set(lines)


@pytest.mark.parametrize("leave", ["exit", "terminal closed", "SIGTERM"])
def test_a_shell_on_a_terminal_greets_and_leaves_nothing(leave: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(REPOSITORY)
        command = [*COMMAND_LINE, "shell", "--nodes=1", "--no-accounting"]
        os.execve(command[0], command, os.environ | {"SHELL": "/bin/bash", "HOME": "/nowhere", "TERM": "dumb"})
    greeting = read_until(terminal, r".*\(slurm\) ")[0]
    assert "node1" in greeting
    assert "cluster=sandbox" in greeting
    assert "no job control" not in greeting
    os.write(terminal, b"echo root=${SLURM_CONF%/etc*}.\n")
    root = Path(read_until(terminal, r"root=(/\S+)\.")[1])
    namespaces = namespaces_of(processes_of(root))
    assert left_of(root, namespaces)
    code = end_shell(pid, terminal, leave)
    if leave != "terminal closed":  # which of the two, bash or we, hears of that first is chance, and so is the code
        assert code == {"exit": 6, "SIGTERM": 128 + signal.SIGTERM}[leave]
    assert left_of(root, namespaces) == []


def end_shell(pid: int, terminal: int, how: str) -> int:
    if how == "exit":
        os.write(terminal, b"exit 6\n")
        read_until(terminal, "exit 6.*exit")
    elif how == "SIGTERM":
        os.kill(pid, signal.SIGTERM)
    if how == "terminal closed":
        os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if how != "terminal closed":
        os.close(terminal)
    return code


def read_until(terminal: int, pattern: str, seconds: float = 10) -> re.Match[str]:
    """Read what the terminal shows until it matches."""
    shown, deadline = "", time.monotonic() + PATIENCE * seconds
    while (match := re.search(pattern, shown, re.DOTALL)) is None:
        assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], f"{pattern} not in {shown}"
        shown += os.read(terminal, 65536).decode()
    return match
