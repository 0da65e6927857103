"""Ranks in a container: a real one, Charliecloud's, on a real Slurm; the commands of the other runtimes as text."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.literals import quote
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.plan import container
from launcher.plan.build import Here, build
from launcher.plan.plan import Plan
from launcher.submit.batch_job import batch_job
from tests.conftest import Launch, environment, launcher_command, only_run, result_of, script
from tests.sandbox import Sandbox
from tests.test_local import STOPPABLE, wait_until
from tests.test_slurm import SCRIPT, in_cluster, job_of, launch_on

HERE = Here("the-run", Path("/runs"), Path("/work dir"), "/venv/bin/python", package=Path("/site/launcher"))
PYXIS = ("cluster=a100x2", "cluster.container.runtime=pyxis", "cluster.container.image='nvcr.io#nvidia/pytorch:25.09'")
APPTAINER = ("cluster=a100x2", "cluster.container.runtime=apptainer", "cluster.container.image=/images/torch.sif")
CHARLIECLOUD = ("cluster.container.runtime=charliecloud",)


def plan_of(*overrides: str) -> Plan:
    config = compose(overrides).config
    validate(config)
    return build(config, HERE)


def test_pyxis_starts_the_whole_task_in_the_image_and_hands_variables_on_by_name() -> None:
    plan = plan_of(*PYXIS, "cluster.container.mounts=[/data:/data:ro]", "cluster.container.env=[WANDB_API_KEY]")
    job = batch_job(plan)
    assert job.container_args == (
        "--export=PYTHONPATH,WANDB_API_KEY",
        "--container-image=nvcr.io#nvidia/pytorch:25.09",
        "--container-mounts=/work dir:/work dir,/runs/the-run:/runs/the-run,/site/launcher:/site/launcher:ro,"
        "/data:/data:ro",
        "--container-workdir=/work dir",
        "--container-env=PYTHONPATH,WANDB_API_KEY",
        "--no-container-mount-home",
    )
    assert job.agent[0] == plan.python == "python3"  # the image's
    assert container.wrap(plan, ["torchrun"], []) == ["torchrun"]


def test_apptainer_wraps_the_ranks_command_and_the_agent_stays_outside() -> None:
    plan = plan_of(*APPTAINER, "cluster.container.args=[--writable-tmpfs]", "cluster.container.mount_home=true")
    assert container.wrap(plan, ["python3", "x"], ["X"]) == [
        "apptainer", "exec", "--cleanenv", "--no-eval", "--nv",
        "--mount=type=bind,source=/work dir,destination=/work dir",
        "--mount=type=bind,source=/runs/the-run,destination=/runs/the-run",
        "--mount=type=bind,source=/site/launcher,destination=/site/launcher,ro",
        "--pwd=/work dir", "--writable-tmpfs", "/images/torch.sif", "python3", "x",
    ]  # fmt: skip
    job = batch_job(plan)
    assert (job.agent[0], job.container_args) == (sys.executable, ())
    assert "--no-home" in container.wrap(plan_of(*APPTAINER), [], [])


def test_apptainer_gets_values_through_its_environment_never_on_its_command_line() -> None:
    settings = plan_of(*APPTAINER).container
    assert settings is not None
    carried = container.carried(settings, {"X": "a,b\n$(x)", "HOST": "no"}, ["X", "UNSET"])
    assert carried == {"X": "a,b\n$(x)", "HOST": "no", "APPTAINERENV_X": "a,b\n$(x)"}


def test_a_path_with_commas_and_quotes_is_mounted_whole_by_apptainer() -> None:
    plan = plan_of(*APPTAINER, "cluster.container.mounts=['/a,\"b\"']")
    assert '--mount=type=bind,"source=/a,""b""","destination=/a,""b"""' in container.wrap(plan, [], [])


def test_the_jobs_variables_and_those_asked_for_go_in_and_no_others() -> None:
    settings = plan_of(*APPTAINER, "cluster.container.env=[WANDB_*]").container
    assert settings is not None
    environ = ("PATH", "HOME", "LD_LIBRARY_PATH", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "WANDB_MODE", "SECRET")
    names = container.handed_on(settings, environ, ["NCCL_DEBUG"])
    assert names == ["CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "PYTHONNOUSERSITE", "SLURM_JOB_ID", "WANDB_MODE"]


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["cluster.container.image=x"], "cluster.container.runtime is missing"),
        (["cluster.container.runtime=apptainer"], "cluster.container.image is missing"),
        (["cluster.container.runtime=docker"], "pyxis, apptainer, charliecloud"),
        (["cluster.container.runtime=pyxis", "cluster.container.image=x"], "without Slurm use apptainer"),
        ([*APPTAINER, "cluster.container.mounts=['a:b:c:d']"], "none of SRC, SRC:DST, SRC:DST:ro"),
        ([*APPTAINER, "cluster.container.mounts=['/a:b']"], "begin with /"),
        ([*APPTAINER, "cluster.container.env=['X=1']"], "no variable's name"),
        ([*PYXIS, "cluster.container.env=['W*']"], "write the names out"),
        ([*CHARLIECLOUD, "cluster.container.image=x", "cluster.container.mounts=['/a:/b:ro']"], "cannot mount"),
    ],
)
def test_a_mistake_in_the_settings_of_a_container_is_named(overrides: list[str], answer: str) -> None:
    with pytest.raises(UserError, match=answer):
        plan_of(*overrides)


@pytest.mark.parametrize("settings", [PYXIS, APPTAINER])
@pytest.mark.parametrize("character", [":", ","])
def test_a_directory_that_a_runtime_cannot_mount_is_refused(settings: tuple[str, ...], character: str) -> None:
    workdir = Path(f"/work{character}dir")
    here = Here("the-run", workdir / "runs", workdir, "python", package=Path("/site"))
    config = compose(settings).config
    if settings is APPTAINER:
        build(config, here)
    else:
        with pytest.raises(UserError, match="cannot mount"):
            build(config, here)


def test_a_dry_run_shows_what_runs_in_which_image(launch: Launch) -> None:
    done = launch("plan", *APPTAINER, "cluster.container.mounts=[/scratch:/data]")
    assert "container  /images/torch.sif (apptainer: the ranks)" in done.stdout
    assert "/scratch at /data" in done.stdout and "apptainer exec --cleanenv" in done.stdout
    assert "--container-image=nvcr.io#nvidia/pytorch:25.09" in launch("plan", *PYXIS).stdout


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
    script(workdir, "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(100)\n")
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
    for command, package in (("ch-run", "charliecloud-runtime"), ("debootstrap", "debootstrap")):
        if not shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            pytest.skip(f"a container needs the package {package}: python -m tests.sandbox install")
    if os.geteuid() != 0:
        pytest.skip("only root can make an image with debootstrap")
    path = tmp_path_factory.mktemp("image")
    suite = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    command = ["debootstrap", "--variant=minbase", "--include=python3", suite["VERSION_CODENAME"], str(path)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"debootstrap made no image: {(made.stderr or made.stdout).strip().splitlines()[-1]}")
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
    done = sandbox.run(launcher_command(*arguments), cwd=workdir, env=outside, timeout=150)
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
time.sleep(100)
""")  # fmt: skip
    done = launch_on(sandbox, workdir, *SCRIPT, "cluster.nodes=2", *in_image(image), "wait=true")
    result = result_of(only_run(workdir))
    assert done.returncode == 1
    assert (result["rank"], result["exit_code"], result["message"]) == (3, 7, "RuntimeError: the reason")
    assert result["seconds"] < 60  # the others were stopped, not waited for


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
    assert (result["outcome"], result["cause"]) == ("stopped", "terminated")
    assert (run / "checkpoints" / f"{result['iteration']:09}" / "seal.json").is_file()


@pytest.mark.train
def test_an_image_that_is_not_there_is_said_so(image: Path, workdir: Path) -> None:
    script(workdir, "")
    arguments = ("task=script", "library=torchrun", "task.path='train it.py'", *CHARLIECLOUD)
    command = launcher_command(*arguments, f"cluster.container.image={image}/nix")
    done = subprocess.run(command, cwd=workdir, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nix" in done.stderr and "Traceback" not in done.stderr
