"""Ranks in a container: a real one, Charliecloud's, on a real Slurm."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.config.literals import quote
from launcher.plan import container
from tests.conftest import PATIENCE, Launch, environment, launcher_command, only_run, result_of, script
from tests.sandbox import Sandbox
from tests.test_container_commands import CHARLIECLOUD, PYXIS, plan_of
from tests.test_local import STOPPABLE, wait_until
from tests.test_slurm import SCRIPT, in_cluster, job_of, launch_on

pytestmark = pytest.mark.timeout(900)  # on a busy machine the image alone takes minutes

STAYS = """\
#!/bin/sh
# As Apptainer does where it mounts an image itself: it stays as the parent of what runs inside.
for word; do shift; [ "$word" = /image ] && break; done
"$@" &
wait $!
"""


@pytest.mark.train
def test_a_runtime_that_stays_as_the_ranks_ancestor_hides_none_of_their_ends(launch: Launch, workdir: Path) -> None:
    (workdir / "bin").mkdir()
    (workdir / "bin" / "apptainer").write_text(STAYS)
    (workdir / "bin" / "apptainer").chmod(0o755)
    text = "import os, sys, time\ntime.sleep(3)\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(100)\n"
    script(workdir, text)  # a rank that ends at once may be gone before the agent looks
    done = launch(
        "task=script", "library=torchrun", "task.path='train it.py'", "cluster.nproc_per_node=2",
        "cluster.container.runtime=apptainer", "cluster.container.image=/image", f"cluster.python={sys.executable}",
        PATH=f"{workdir}/bin:{os.environ['PATH']}",
    )  # fmt: skip
    result = result_of(only_run(workdir))
    assert (done.returncode, result["rank"], result["exit_code"]) == (1, 1, 7), done.stderr
    events = (only_run(workdir) / "attempts/000/events.jsonl").read_text().splitlines()
    (ended,) = [event for line in events if (event := json.loads(line))["event"] == "ended"]
    assert ended["failures"][0]["ended"] % 1 != 0  # the kernel's moment, not torchrun's whole second


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Debian of this release with its own Python; torch and the libraries are mounted into it, not installed."""
    for command, package in (("ch-run", "charliecloud-runtime"), ("mmdebstrap", "mmdebstrap")):
        if not shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            pytest.skip(f"a container needs the package {package}: python -m tests.sandbox install")
    if os.geteuid() != 0:
        pytest.skip("only root can make an image with mmdebstrap")
    path = tmp_path_factory.mktemp("image")
    suite = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    small = ["--variant=essential", "--include=python3,libstdc++6"]  # torch needs the latter
    command = ["mmdebstrap", "--quiet", *small, suite["VERSION_CODENAME"], path]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"mmdebstrap made no image: {(made.stderr or made.stdout).strip().splitlines()[-1]}")
    its = subprocess.run(["chroot", path, "python3", "-V"], capture_output=True, text=True, check=True).stdout
    if f"{sys.version_info.major}.{sys.version_info.minor}." not in its:
        pytest.skip(f"the image has {its.strip()}, and this environment's packages are for {sys.version.split()[0]}")
    yield path
    shutil.rmtree(path)


def in_image(image: Path) -> list[str]:
    """This environment's packages, and nothing else of it, in the image; and its names, which no DNS server knows."""
    return [
        *CHARLIECLOUD,
        f"cluster.container.image={image}",
        f"cluster.container.mounts=[{sysconfig.get_path('purelib')}:/opt/packages,/etc/nsswitch.conf]",
        "cluster.env.PYTHONPATH=/opt/packages",
    ]


INSIDE = """\
import json, os, socket, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
try:
    import only_in_the_home
    print("LEAKED")
except ImportError:
    pass
print("INSIDE " + json.dumps({"environment": dict(os.environ), "python": sys.executable, "cwd": os.getcwd(),
                              "host": socket.gethostname(), "sum": total.item(), "path": sys.path}))
dist.destroy_process_group()
"""
VALUE = 'mlx5_0:1,mlx5_1:1 $(x) `y` "z" é\nsecond line'


@pytest.mark.slurm
def test_srun_hands_on_the_named_variables_whole_and_no_others(sandbox: Sandbox) -> None:
    """What pyxis' part of the command relies on, without pyxis."""
    plan = plan_of(*PYXIS, "cluster.container.env=[GIVEN]")
    (export,) = [argument for argument in container.srun_args(plan) if argument.startswith("--export=")]
    outside = {**in_cluster(sandbox), "GIVEN": VALUE, "HIDDEN": "secret", "PYTHONPATH": "/code"}
    command = ["srun", "-N1", export, sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    inside = json.loads(sandbox.run(command, env=outside, check=True).stdout)
    assert (inside["GIVEN"], inside["PYTHONPATH"]) == (VALUE, "/code")
    assert "SLURM_JOB_ID" in inside
    assert not {"HIDDEN", "HOME", "VIRTUAL_ENV"} & inside.keys()


@pytest.mark.slurm
@pytest.mark.train
def test_ranks_on_two_nodes_train_in_the_image_and_see_nothing_of_the_host_but_what_is_named(
    sandbox: Sandbox, image: Path, workdir: Path
) -> None:
    home = workdir / "home"
    packages = home / f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (packages / "only_in_the_home.py").touch()
    script(workdir, INSIDE)
    arguments = [
        *SCRIPT, "cluster.nodes=2", "cluster.nodelist=node[1-2]", *in_image(image), f"cluster.env.HCA={quote(VALUE)}",
        "cluster.container.env=[GIVEN*]", "cluster.container.mount_home=true", "wait=true",
    ]  # fmt: skip
    outside = {**in_cluster(sandbox), "GIVEN": VALUE, "HIDDEN": "secret", "HOME": str(home)}
    done = sandbox.run(launcher_command(*arguments), cwd=workdir, env=outside, timeout=PATIENCE * 150)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(workdir)
    for rank, host in enumerate(["node1", "node1", "node2", "node2"]):
        log = (run / f"attempts/000/rank-{rank}.log").read_text()
        assert "LEAKED" not in log
        seen = json.loads(next(line for line in log.splitlines() if line.startswith("INSIDE "))[7:])
        assert (seen["host"], seen["sum"], seen["cwd"]) == (host, 4.0, str(workdir))
        assert seen["python"].startswith("/usr/bin/python3")
        inside = seen["environment"]
        assert (inside["HCA"], inside["GIVEN"], inside["RANK"]) == (VALUE, VALUE, str(rank))
        assert inside["SLURM_JOB_ID"] == job_of(run) and "CUDA_VISIBLE_DEVICES" in inside
        assert "HIDDEN" not in inside and "VIRTUAL_ENV" not in inside
        assert inside["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        assert not [entry for entry in seen["path"] if entry.startswith((sys.prefix, sys.base_prefix, str(home)))]
    assert "secret" not in "".join(path.read_text() for path in run.glob("slurm/*.sh"))


@pytest.mark.slurm
@pytest.mark.train
def test_a_library_trains_in_the_image_on_two_nodes(sandbox: Sandbox, image: Path, workdir: Path) -> None:
    arguments = ("task=cartpole", "cluster=sandbox", "cluster.nodes=2", "cluster.nproc_per_node=1", *in_image(image))
    done = launch_on(sandbox, workdir, *arguments, "max_iterations=3", "task.solved=null", "wait=true")
    assert done.returncode == 0, done.stdout + done.stderr
    result = result_of(only_run(workdir))
    assert (result["outcome"], result["iteration"], result["world_size"]) == ("completed", 3, 2)
    assert result["ranks_in_sync"] is True


@pytest.mark.slurm
@pytest.mark.train
def test_a_rank_that_exits_in_the_image_gets_the_same_verdict_as_outside(
    sandbox: Sandbox, image: Path, workdir: Path
) -> None:
    script(workdir, """\
import os, sys, time
if os.environ["RANK"] == "3":
    try:
        raise RuntimeError("the reason")
    except RuntimeError:
        import traceback; traceback.print_exc()
        sys.exit(7)
time.sleep(300)
""")  # fmt: skip
    done = launch_on(sandbox, workdir, *SCRIPT, "cluster.nodes=2", *in_image(image), "wait=true")
    result = result_of(only_run(workdir))
    assert done.returncode == 1
    assert (result["rank"], result["exit_code"], result["message"]) == (3, 7, "RuntimeError: the reason")
    assert result["seconds"] < PATIENCE * 60  # the others were stopped, not waited for


@pytest.mark.slurm
@pytest.mark.train
def test_a_cancelled_job_lets_the_ranks_in_the_image_save(sandbox: Sandbox, image: Path, workdir: Path) -> None:
    script(workdir, STOPPABLE)
    assert launch_on(sandbox, workdir, *SCRIPT, "cluster.nodes=2", *in_image(image)).returncode == 0
    run = only_run(workdir)
    wait_until((run / "metrics.jsonl").exists)
    assert launch_on(sandbox, workdir, "cancel", run.name).returncode == 0
    wait_until((run / "result.json").exists)
    result = result_of(run)
    assert (result["outcome"], result["cause"]) == ("stopped", "cancelled")
    assert (run / "checkpoints" / f"{result['iteration']:09}" / "seal.json").is_file()


@pytest.mark.train
def test_an_image_that_is_not_there_is_said_so(image: Path, workdir: Path) -> None:
    script(workdir, "")
    arguments = ("task=script", "library=torchrun", "task.path='train it.py'", *CHARLIECLOUD)
    command = launcher_command(*arguments, f"cluster.container.image={image}/nix")
    done = subprocess.run(command, cwd=workdir, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nix" in done.stderr and "Traceback" not in done.stderr
