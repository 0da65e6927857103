"""Why a job could never start: from what sinfo prints, and from a real controller."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from launcher.slurm.partitions import parse_sinfo, seconds, why_never
from tests.conftest import script, started
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import SCRIPT, launch_on

SINFO = """\
main*|up|infinite|1-infinite|4|64|512000|gpu:a100:2(S:0-1)
short|up|30:00|1-2|4|64+|512000+|gpu:a100:2
mixed|up|2-00:00:00|1-infinite|2|32|256000|gpu:h100:4,nic:1
mixed|up|2-00:00:00|1-infinite|8|128|1024000|(null)
plain|up|infinite|1-infinite|2|16|64000|gpu:2
closed|down|infinite|1-infinite|4|64|512000|gpu:a100:2
nonsense
"""


@pytest.mark.parametrize(
    ("directives", "reason"),
    [
        ({"nodes": 4, "gpus-per-node": "a100:2", "time": "10-00:00:00"}, ""),
        ({"nodes": 5}, "partition main has 4 nodes, and the job asks for 5"),
        ({"nodes": 3, "partition": "short"}, "partition short gives a job 2 nodes at most, and it asks for 3"),
        ({"partition": "short", "time": "00:30:00"}, ""),
        ({"partition": "short", "time": "00:30:01"}, "partition short allows 00:30:00, and the job asks for 00:30:01"),
        ({"partition": "mixed", "time": "3-00:00:00"}, "allows 2-00:00:00, and the job asks for 3-00:00:00"),
        ({"partition": "closed"}, "partition closed is down"),
        ({"gpus-per-node": "h100:1"}, "no node of partition main has GPUs of type h100: there are a100"),
        ({"gres": "gpu:a100:3"}, "no node of partition main has 3 GPUs: 2 at most"),
        ({"gpus-per-node": "3"}, "no node of partition main has 3 GPUs: 2 at most"),
        ({"partition": "mixed", "gpus-per-node": "h100:4", "nodes": 10}, ""),
        ({"partition": "plain", "gpus-per-node": "2"}, ""),
        ({"partition": "plain", "gpus-per-node": "a100:1"}, "no node of partition plain has GPUs of type a100"),
        ({"cpus-per-task": 65}, "no node of partition main has 65 CPUs: 64 at most"),
        ({"mem": "600G"}, "no node of partition main has 614400 MB of memory: 512000 at most"),
        ({"partition": "short,main", "time": "01:00:00"}, ""),
        ({"partition": "short,closed", "time": "01:00:00"}, "partition short allows 00:30:00"),
        ({"partition": "unknown", "nodes": 99}, ""),  # the controller itself says that well
    ],
)
def test_the_reason_is_worked_out_from_what_the_partition_has(directives: dict[str, Any], reason: str) -> None:
    found = why_never(directives, parse_sinfo(SINFO))
    assert reason in found and bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10:00", 600), ("1:30:00", 5400), ("2-00:00:01", 172801), ("infinite", None), ("n/a", None), ("", None)],
)
def test_slurms_times_are_read(text: str, expected: int | None) -> None:
    assert seconds(text) == expected


@pytest.fixture(scope="module")
def strict() -> Generator[Sandbox]:
    """A cluster with a short partition, a closed one, and accounting that refuses unknown accounts."""
    extra = (
        "AccountingStorageEnforce=associations,limits,qos\n"
        "PartitionName=short Nodes=ALL MaxTime=10 MaxNodes=2 State=UP\n"
        "PartitionName=closed Nodes=ALL State=DOWN\n"
    )
    for cluster in started(extra_conf=extra):
        sacctmgr = ["sacctmgr", "-i", "add"]
        cluster.run([*sacctmgr, "account", "robots"], check=True)
        cluster.run([*sacctmgr, "user", "root", "account=robots"], check=True)
        yield cluster


@pytest.mark.slurm
def test_a_dry_run_tells_when_a_job_could_start_and_why_it_never_can(strict: Sandbox, workdir: Path) -> None:
    script(workdir, "")

    def says(*overrides: str) -> str:
        done = launch_on(strict, workdir, *SCRIPT, "cluster.account=robots", *overrides, "dry_run=true")
        assert done.returncode == 0, done.stderr
        return next(line for line in done.stdout.splitlines() if line.startswith("Slurm says"))

    assert "could start at 20" in says() and "in partition main" in says()
    for overrides, reason in (
        (["cluster.nodes=9"], "never: partition main has 4 nodes, and the job asks for 9"),
        (
            ["cluster.partition=short", "cluster.nodes=3", "cluster.time=5"],
            "never: partition short gives a job 2 nodes",
        ),
        (["cluster.partition=short"], "never: partition short allows 00:10:00, and the job asks for 00:30:00"),
        (["cluster.partition=closed"], "never: partition closed is down"),
        (["cluster.partition=nix"], "never: Invalid partition name specified"),
        (["cluster.account=nix"], "never: Invalid account"),
        (["cluster.qos=nix"], "never: Invalid qos"),
        (["cluster.gpu_type=h100"], "never: no node of partition main has GPUs of type h100: there are a100"),
        (["cluster.gpus_per_node=3"], "never: no node of partition main has 3 GPUs"),
        (["cluster.constraint=nix"], "never: Invalid feature specification"),
    ):
        assert reason in says(*overrides), overrides


@pytest.mark.slurm
def test_a_dry_run_on_a_busy_cluster_tells_the_estimated_start(strict: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    hold = ["sbatch", "--parsable", "-A", "robots", "-N4", "--exclusive", "-t", "30", "-o/dev/null", "--wrap=sleep 900"]
    job = strict.run(hold, check=True).stdout.strip()
    try:
        ends = wait_until(lambda: strict.run(["squeue", "-h", "-j", job, "-t", "R", "-o", "%e"]).stdout.strip())
        done = launch_on(strict, workdir, *SCRIPT, "cluster.account=robots", "dry_run=true")
        assert f"could start at {ends}" in done.stdout
    finally:
        strict.run(["scancel", job])
