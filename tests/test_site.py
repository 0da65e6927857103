"""What sites differ in, on a real Slurm: settings for some hosts, environments, scratch, a profile that was written."""

import ast
import json
import sysconfig
import venv
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import only_run, result_of, script, started
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import SCRIPT, job_of, launch_on, slurm_state

pytestmark = [pytest.mark.slurm, pytest.mark.train]

TELL = """\
import os, socket, sys
from pathlib import Path
names = ("NCCL_", "GLOO_", "CUDA_DEVICE", "LAUNCHER_SCRATCH", "TOLD_")
told = {name: value for name, value in os.environ.items() if name.startswith(names)}
scratch = os.environ.get("LAUNCHER_SCRATCH")
if scratch:
    Path(scratch, f"rank-{os.environ['RANK']}").touch()
    told["mode"] = oct(Path(scratch).stat().st_mode)
print("TOLD", {"host": socket.gethostname(), "rank": int(os.environ["RANK"]), "prefix": sys.prefix, **told})
"""


def told(run: Path) -> list[dict[str, Any]]:
    """What every rank said of itself, by rank."""
    logs = sorted(run.glob("attempts/000/rank-*.log"))
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("TOLD ")]
    return sorted((ast.literal_eval(line[5:]) for line in lines), key=lambda said: said["rank"])


def completed(cluster: Sandbox, workdir: Path, *arguments: str) -> Path:
    script(workdir, TELL)
    done = launch_on(cluster, workdir, *arguments, "wait=true")
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(workdir)


def test_a_setting_for_some_hosts_reaches_these_alone_and_values_arrive_unchanged(
    sandbox: Sandbox, workdir: Path, tmp_path: Path
) -> None:
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl" / "lying.yaml").write_text("symptom: lies\nenv: {NCCL_P2P_LEVEL: PXB}\nhosts: node[2-4]\n")
    run = completed(
        sandbox, workdir, "--config-dir", str(tmp_path), *SCRIPT, "cluster.nodes=2", "cluster.nodelist='node[1-2]'",
        "nccl=[lying,debug_info]", "cluster.ib_hca='mlx5_0:1,mlx5_1:1'", "cluster.network_interface=eth0",
    )  # fmt: skip
    everywhere = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": f"{run}/attempts/000/nccl.%h.%p.log",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    for one in told(run):
        mine = {name: value for name, value in one.items() if name.startswith(("NCCL_", "GLOO_", "CUDA_DEVICE"))}
        assert mine == everywhere | ({"NCCL_P2P_LEVEL": "PXB"} if one["host"] == "node2" else {})
    assert [one["host"] for one in told(run)] == ["node1", "node1", "node2", "node2"]
    plan = json.loads((run / "plan.json").read_text())
    assert {"name": "NCCL_P2P_LEVEL", "value": "PXB", "origin": "nccl lying", "reason": "lies", "hosts": "node[2-4]",
            "in_attempt": False} in plan["environment"]  # fmt: skip
    (header,) = run.glob("slurm/*_0_log.out")
    assert "PXB  (nccl lying, on node[2-4] only: lies)" in header.read_text()


def test_every_node_has_a_scratch_directory_of_its_own_while_the_ranks_run(
    sandbox: Sandbox, workdir: Path, tmp_path: Path
) -> None:
    place = tmp_path / "scratch disk"
    setup = f"cluster.setup=['export FAST=\"{place}\"']"
    run = completed(sandbox, workdir, *SCRIPT, "cluster.nodes=2", setup, "cluster.scratch='$FAST/here'")
    ranks = told(run)
    directories = [one["LAUNCHER_SCRATCH"] for one in ranks]
    assert directories[0] == directories[1] != directories[2] == directories[3]
    assert all(Path(directory).parent == place / "here" for directory in directories)
    assert {one["mode"] for one in ranks} == {"0o40700"}
    assert not list((place / "here").iterdir())  # gone with the ranks


def test_a_scratch_directory_that_cannot_be_made_fails_the_run_with_the_reason(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, TELL)
    done = launch_on(sandbox, workdir, *SCRIPT, "cluster.scratch=$NOT_SET_HERE", "wait=true")
    assert done.returncode == 1
    assert "a variable of '$NOT_SET_HERE' is not set on this node" in result_of(only_run(workdir))["message"]


def test_a_virtual_environment_of_the_profile_is_the_ranks(sandbox: Sandbox, workdir: Path) -> None:
    venv.create(workdir / "my env", with_pip=False)
    site = next((workdir / "my env" / "lib").glob("python*/site-packages"))
    (site / "torch_too.pth").write_text(sysconfig.get_path("purelib"))
    run = completed(sandbox, workdir, *SCRIPT, "cluster.venv='my env'", "cluster.nproc_per_node=1")
    assert [one["prefix"] for one in told(run)] == [str(workdir / "my env")]


def test_an_environment_that_cannot_be_activated_ends_the_job(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, TELL)
    assert launch_on(sandbox, workdir, *SCRIPT, "cluster.conda=nix").returncode == 0
    run = only_run(workdir)
    wait_until(lambda: slurm_state(sandbox, job_of(run)) == "FAILED")
    assert not list(run.glob("attempts/*"))
    assert "conda: command not found" in "".join(path.read_text() for path in run.glob("slurm/*.out"))


@pytest.fixture(scope="module")
def sliced() -> Generator[Sandbox]:
    """A cluster whose GPUs are slices of one (MIG), to Slurm a type with a dot in its name; without accounting."""
    yield from started(nodes=2, gpu_type="1g.10gb", accounting=False)


def test_a_profile_that_slurm_was_asked_for_runs_a_job_as_it_is(sliced: Sandbox, workdir: Path, tmp_path: Path) -> None:
    written = launch_on(sliced, workdir, "profile", "--probe")
    assert written.returncode == 0, written.stderr
    assert "# network_interface: eth0" in written.stdout
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "lab.yaml").write_text(written.stdout)
    own = ("--config-dir", str(tmp_path), "task=script", "library=torchrun", "task.path='train it.py'", "cluster=lab")
    run = completed(sliced, workdir, *own, "cluster.nodes=2")
    assert len(told(run)) == 4
    assert json.loads((run / "plan.json").read_text())["directives"]["gpus-per-node"] == "1g.10gb:2"
