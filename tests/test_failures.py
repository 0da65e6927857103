"""Failures that are made on purpose, on a real Slurm: one line that names the rank, the host and the reason, at once.

Others stand where they belong: a rank that exits, a node that never comes, the time limit and setup lines in
test_slurm.py; preemption, killed torchruns and agents in test_survival.py; sick GPUs in test_preflight_run.py.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, only_run, result_of, script, started
from tests.sandbox import Sandbox
from tests.survival import Disturbed
from tests.test_slurm import SCRIPT, launch_on

pytestmark = [pytest.mark.slurm, pytest.mark.train]

NODES = ("sick1", "sick2", "sick3")
HAS_MEMORY_GROUPS = Path("/sys/fs/cgroup/memory/memory.oom_control").exists()
ON_TWO = (*SCRIPT, "cluster.nodes=2", "cluster.gpus_per_node=1", "cluster.nodelist='sick[1-2]'")
AT_ONCE_S = 5.0 * PATIENCE


@pytest.fixture(scope="module")
def cluster() -> Generator[Sandbox]:
    """Three nodes that hold jobs to their memory where that can be."""
    yield from started(nodes=NODES, gpus=1, accounting=False, memory_limits=HAS_MEMORY_GROUPS)


FAULTY = """\
import os, pathlib, sys, time
if os.environ["RANK"] == "1":
    def mark():
        pathlib.Path("began").write_text(str(time.time()))
    {fault}
time.sleep(100)
"""
ENVIRONMENT = """\
class Arm:
    def step(self, action):
        raise ValueError("joint 3 beyond its limit")
"""
EATS = "x = []; mark()\n    while True: x.append(b'x' * 2**24); mark()"
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "an exception in an environment": (
        "import my_env; mark(); my_env.Arm().step(0)",
        {"message": "ValueError: joint 3 beyond its limit", "exit_code": 1, "known": ""},
    ),
    "a crash in compiled code": (
        "import ctypes; mark(); ctypes.string_at(0)",
        {"signal": "SIGSEGV", "exit_code": None, "known": "sigsegv"},
    ),
    "kill -9": ("mark(); os.kill(os.getpid(), 9)", {"signal": "SIGKILL", "known": "sigkill", "cause": "crash"}),
    "a port that is held": (
        "import socket; held = socket.create_server(('', 29500)); mark(); socket.create_server(('', 29500))",
        {"known": "address-in-use"},
    ),
    "a full disk": (
        "mark(); open('/mnt/full', 'wb').write(b'x' * 2**20)",
        {"known": "disk-full", "message": "OSError: [Errno 28] No space left on device"},
    ),
    "a package that is missing": (
        "mark(); import nothing_of_the_kind",
        {"known": "missing-module", "message": "ModuleNotFoundError: No module named 'nothing_of_the_kind'"},
    ),
    "no memory": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); mark(); x = bytearray(2**31)",
        {"known": "host-memory", "message": "MemoryError", "cause": "oom"},
    ),
}


def fails(cluster: Sandbox, workdir: Path, *arguments: str) -> dict[str, Any]:
    """Run to the end and return the verdict, which the last lines of the command tell in a line."""
    done = launch_on(cluster, workdir, *arguments, "wait=true")
    result = result_of(only_run(workdir))
    assert done.returncode == 1, done.stdout + done.stderr
    assert result["outcome"] == "failed"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert result["message"] in line
    assert result["rank"] is None or f"rank {result['rank']} on {result['host']}" in line
    return result


def seconds_to_verdict(workdir: Path) -> float:
    return (only_run(workdir) / "result.json").stat().st_mtime - float((workdir / "began").read_text())


@pytest.fixture
def small_disk_on_sick2(cluster: Sandbox) -> Generator[None]:
    cluster.on("sick2", ["mount", "-t", "tmpfs", "-o", "size=64k", "test", "/mnt"], check=True)
    yield
    cluster.on("sick2", ["umount", "--lazy", "/mnt"], check=True)


@pytest.mark.usefixtures("small_disk_on_sick2")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_fails_is_named_with_its_host_and_the_reason(cluster: Sandbox, workdir: Path, fault: str) -> None:
    text, expected = FAULTS[fault]
    script(workdir, ENVIRONMENT, "my_env.py")
    script(workdir, FAULTY.format(fault=text))
    result = fails(cluster, workdir, *ON_TWO, "cluster.nproc_per_node=1")
    assert (result["rank"], result["host"]) == (1, "sick2")
    assert {key: result[key] for key in expected} == expected
    assert seconds_to_verdict(workdir) < AT_ONCE_S
    story = launch_on(cluster, workdir, "why", only_run(workdir).name).stdout
    assert "rank 1 on sick2" in story and result["message"] in story
    if "environment" in fault:
        assert 'my_env.py", line 3, in step' in story


@pytest.mark.skipif(not HAS_MEMORY_GROUPS, reason="no control groups of version 1 here")
def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_told_from_one_that_somebody_killed(
    cluster: Sandbox, workdir: Path
) -> None:
    script(workdir, FAULTY.format(fault=EATS))
    result = fails(cluster, workdir, *ON_TWO, "cluster.nproc_per_node=1", "cluster.mem_per_gpu=800M")
    assert (result["rank"], result["host"], result["signal"]) == (1, "sick2", "SIGKILL")
    assert (result["cause"], result["known"]) == ("oom", "oom-killer")
    assert "800 MiB" in result["message"] and "cluster.mem_per_gpu" in result["hint"]
    assert seconds_to_verdict(workdir) < AT_ONCE_S


@pytest.fixture
def cluster_that_kills_whole_jobs() -> Generator[Sandbox]:
    """Where Slurm itself looks at the memory of a job now and then, and kills it all, agents too."""
    conf = "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill"
    yield from started(nodes=1, gpus=1, accounting=False, extra_conf=conf)


def test_a_job_that_slurm_kills_for_want_of_memory_says_so(
    cluster_that_kills_whole_jobs: Sandbox, workdir: Path
) -> None:
    script(workdir, "import time\nx = b'x' * 2**31\ntime.sleep(100)\n")
    arguments = (*SCRIPT, "cluster.gpus_per_node=1", "cluster.nproc_per_node=1", "cluster.mem_per_gpu=1500M")
    result = fails(cluster_that_kills_whole_jobs, workdir, *arguments, "retry.crash=0")
    assert (result["cause"], result["known"], result["host"]) == ("oom", "oom-killer", "node1")
    assert "cluster.mem_per_gpu" in result["hint"]


TIDIES_UP = """\
import atexit, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    atexit.register(time.sleep, 3)
    atexit.register(dist.destroy_process_group)  # before that one
    raise RuntimeError("the policy is not what it should be")
dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_loses_its_peer_is_not_named_although_it_ends_first(cluster: Sandbox, workdir: Path) -> None:
    script(workdir, TIDIES_UP)
    result = fails(cluster, workdir, *ON_TWO, "cluster.nproc_per_node=1")
    assert (result["rank"], result["host"]) == (1, "sick2")
    assert result["message"] == "RuntimeError: the policy is not what it should be"


@pytest.mark.parametrize(
    ("override", "cause", "words"),
    [
        ("cluster.device=cuda", "preflight", "NVIDIA"),
        ("cluster.network_interface=nix0", "setup", "nix0"),
        ("cluster.setup=['rm train*']", "setup", "train it.py"),
    ],
)
def test_what_no_rank_could_run_with_is_found_before(
    cluster: Sandbox, workdir: Path, override: str, cause: str, words: str
) -> None:
    script(workdir, "import time\ntime.sleep(100)\n")
    result = fails(cluster, workdir, *ON_TWO, override, "retry.node_fail=0")
    assert result["cause"] == cause and words in result["message"]
    assert result["host"] in ("sick1", "sick2")  # which of them says it first is chance
    assert result["seconds"] < AT_ONCE_S


@pytest.fixture
def sick2_takes_sick1_for_itself(cluster: Sandbox, tmp_path: Path) -> Generator[None]:
    """As on machines whose /etc/hosts has their own kind of names at 127.0.1.1."""
    hosts = tmp_path / "hosts"
    text = cluster.on("sick2", ["cat", "/etc/hosts"], check=True).stdout
    hosts.write_text("".join(line for line in text.splitlines(True) if "sick1" not in line) + "127.0.1.1 sick1\n")
    cluster.on("sick2", ["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    yield
    cluster.on("sick2", ["umount", "/etc/hosts"], check=True)


@pytest.mark.usefixtures("sick2_takes_sick1_for_itself")
def test_a_name_that_leads_to_loopback_names_the_node(cluster: Sandbox, workdir: Path) -> None:
    script(workdir, "import time\ntime.sleep(100)\n")
    result = fails(cluster, workdir, *ON_TWO, "retry.node_fail=0", "watch.rendezvous=10")
    assert result["host"] == "sick2"


def test_a_node_that_loses_power_is_named(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir, "retry.node_fail=0").reach(5)
    host = run.hosts()[1]
    cluster.fail(host)
    try:
        result = run.end()
    finally:
        cluster.recover(host)
    assert (result["outcome"], result["cause"], result["host"]) == ("failed", "node_lost", host)
    assert host in launch_on(cluster, workdir, "why", only_run(workdir).name).stdout
