"""The commands that put a task, or its ranks, into an image: as text, for every runtime."""

import dataclasses
import sys
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.plan import container
from launcher.plan.build import Here, build
from launcher.plan.plan import Plan
from launcher.plan.snapshot import Snapshot
from launcher.submission.batch_job import batch_job
from tests.conftest import Launch

HERE = Here("the-run", Path("/runs"), Path("/work dir"), "/venv/bin/python")
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
        "--container-mounts=/work dir:/work dir,/runs/the-run:/runs/the-run,/data:/data:ro",
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


def test_a_snapshot_brings_the_repository_that_its_links_lead_to() -> None:
    here = dataclasses.replace(
        HERE, workdir=Path("/repo/sub"), snapshot=Snapshot(Path("/repo"), Path("/runs/s"), HERE.runs_dir)
    )
    settings = build(compose(APPTAINER).config, here).container
    assert settings is not None
    assert [mount.target for mount in settings.mounts] == ["/repo", "/runs/the-run"]


def test_charliecloud_keeps_what_is_named_and_sets_a_path_unless_the_plan_does() -> None:
    plan = plan_of(*CHARLIECLOUD, "cluster.container.image=/images/torch", "cluster.container.mounts=[/data:/d]")
    command = container.wrap(plan, ["python3", "x"], ["A", "B"])
    assert command[:2] == ["ch-run", "--unset-env=!(A|B)"]
    assert command[2].startswith("--set-env=PATH=/usr/local/sbin:")
    assert command[-5:] == ["--cd=/work dir", "/images/torch", "--", "python3", "x"]
    assert "--bind=/data:/d" in command
    assert not [word for word in container.wrap(plan, [], ["PATH"]) if word.startswith("--set-env")]


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
    here = Here("the-run", workdir / "runs", workdir, "python")
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
