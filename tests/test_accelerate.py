"""Accelerate: one script in every mode, with the environment that Accelerate's own launcher would give it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.plan.build import Here, build
from launcher.plan.plan import Plan
from tests.conftest import PATIENCE, ROOT, Launch, environment, only_run, result_of, script
from tests.sandbox import Sandbox
from tests.test_slurm import launch_on

EXAMPLE = ROOT / "examples" / "accelerate_train.py"
LIBRARY = ("task=script", "library=accelerate")
TRAIN = (*LIBRARY, f"task.path={EXAMPLE}", "task.args={steps: 8}")
HERE = Here("the-run", Path("/runs"), Path("/work dir"), "/venv/bin/python")


def plan_of(*overrides: str) -> Plan:
    return build(compose([*LIBRARY, f"task.path={EXAMPLE}", *overrides]).config, HERE)


def accelerate_values(*overrides: str) -> dict[str, str]:
    names = ("ACCELERATE_", "FSDP_", "DS_")
    return {name: value for name, value in plan_of(*overrides).values().items() if name.startswith(names)}


def test_the_plan_shows_what_is_decided_with_its_origin() -> None:
    overrides = ("library.accelerate.mode=zero2", "library.accelerate.mixed_precision=bf16", "cluster=a100x2",
                 "library.accelerate.gradient_accumulation_steps=4")  # fmt: skip
    assert accelerate_values(*overrides) == {
        "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
        "ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    }  # fmt: skip
    (mode,) = [s for s in plan_of(*overrides).environment if s.name == "ACCELERATE_USE_DEEPSPEED"]
    assert (mode.origin, mode.reason) == ("library.accelerate.mode", "zero2")


def test_on_a_cpu_accelerate_is_told_so_unless_deepspeed_would_be_turned_off_by_it() -> None:
    assert accelerate_values("cluster.device=cpu") == {"ACCELERATE_USE_CPU": "true"}
    assert "ACCELERATE_USE_CPU" not in accelerate_values("cluster.device=cpu", "library.accelerate.mode=zero3")
    assert accelerate_values("cluster=a100x2") == {}


def test_a_script_runs_under_the_check_of_its_world(tmp_path: Path) -> None:
    assert plan_of("task.args={lr: 0.1, on: [1, 2], off: null}").entry == (
        "/venv/bin/python", "-u", "-m", "launcher.train.accelerate", str(EXAMPLE), "--lr", "0.1", "--on", "1", "2",
    )  # fmt: skip
    assert plan_of("task.path=null", "task.module=a.b").entry[3:] == ("launcher.train.accelerate", "-m", "a.b")


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["library.accelerate.mode=fsdp", "cluster.device=cpu"], "mode=fsdp needs GPUs"),
        (["library.accelerate.mode=fsdp2", "cluster=sandbox"], "mode=fsdp2 needs GPUs"),
        (["library.accelerate.mode=zero4"], "zero3"),
        (["library.accelerate.config_file=nix.yaml"], "no file 'nix.yaml'"),
        (["library.accelerate.gradient_accumulation_steps=0"], "at least 1"),
        (["library=torchrun", "library.accelerate.mode=ddp"], "no effect with library=torchrun"),
        (["task.global_batch_size=32"], "per_device_train_batch_size in task.args"),
        (["task.args=3"], "neither a list"),
        (["library=torchrun", "task.global_batch_size=32"], "needs library=trl"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(overrides: list[str], answer: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(compose([*LIBRARY, f"task.path={EXAMPLE}", *overrides]).config)
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_dry_run_shows_the_effective_batch(launch: Launch) -> None:
    arguments = (*LIBRARY, f"task.path={EXAMPLE}", "cluster=a100x2", "cluster.nodes=2", "dry_run=true")
    known = launch(*arguments, "task.args.per_device_train_batch_size=4", "task.global_batch_size=32").stdout
    assert "batch      4 × 4 × 2 = 32 (per device × ranks × accumulation)" in known
    assert "batch      the script's × 4 × the script's (per device" in launch(*arguments).stdout


def losses_of(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss ([\d.]+)$", output, re.M)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of DDP on two ranks under plain torchrun: nothing of ours but the arguments.

    How it ends does not count: gloo may abort a process that has done its work (launcher/train/ending.py).
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(EXAMPLE), "--steps", "8"]
    variables = environment(ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)
    assert "MULTI_CPU on 2 ranks" in done.stdout
    return losses_of(done.stdout)


KINDS = {"ddp": "MULTI_CPU", "zero1": "DEEPSPEED", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


@pytest.mark.train
@pytest.mark.parametrize("mode", KINDS)
def test_one_script_has_the_same_losses_in_every_mode(launch: Launch, mode: str, reference: list[float]) -> None:
    pytest.importorskip("deepspeed")
    done = launch(*TRAIN, f"library.accelerate.mode={mode}", "cluster.nproc_per_node=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"DistributedType.{KINDS[mode]} on 2 ranks" in done.stdout
    assert len(reference) == 8
    assert losses_of(done.stdout) == pytest.approx(reference, abs=2e-4)


FSDP_ON_CPU = f"""\
import runpy, sys
from accelerate.state import DistributedType, PartialState
# Accelerate knows no FSDP without a GPU; FSDP2 itself runs on gloo. For this test alone.
PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


@pytest.mark.train
def test_the_same_script_has_the_same_losses_under_fsdp2(launch: Launch, workdir: Path, reference: list[float]) -> None:
    script(workdir, FSDP_ON_CPU)
    variables = {**variables_of(mode="fsdp2"), "ACCELERATE_TORCH_DEVICE": "cpu"}
    given = [f"cluster.env.{name}='{value}'" for name, value in variables.items()]
    done = launch(
        "task=script", "library=torchrun", "task.path='train it.py'", "task.args={steps: 8}", *given,
        "cluster.nproc_per_node=2", "retry.crash=0",  # how it ends does not count here either
    )  # fmt: skip
    assert "DistributedType.FSDP on 2 ranks" in done.stdout, done.stdout + done.stderr
    assert losses_of(done.stdout) == pytest.approx(reference, abs=2e-4)


ENVIRONMENT = """\
import json, sys
from launcher.train import accelerate_env
print("MADE", json.dumps(accelerate_env.environment(json.loads(sys.argv[1]), 2, cpu=False)))
"""


def variables_of(**settings: Any) -> dict[str, str]:
    """What our code makes of settings for two ranks with GPUs, in a process of its own."""
    unset = dict.fromkeys(("mode", "mixed_precision", "gradient_accumulation_steps", "config_file"))
    done = subprocess.run(
        [sys.executable, "-c", ENVIRONMENT, json.dumps({**unset, **settings})],
        env=environment(OMP_NUM_THREADS="1", **HOME), capture_output=True, text=True, check=True, timeout=PATIENCE * 60,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MADE ")]
    return json.loads(line[5:])


HOME = {"HF_HOME": "/nowhere"}
"""Where Accelerate would look for a configuration that nobody named."""
OURS = {"TORCH_EXTENSIONS_DIR"}
TORCHRUNS = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|TORCH_.*")
DUMP = "import json, os\nif os.environ['RANK'] == '0': print('DUMP', json.dumps(dict(os.environ)))\n"


def launched(directory: Path, *flags: str) -> dict[str, str]:
    """What a rank of `accelerate launch` sees, less what was there before and what is torchrun's."""
    before = environment(OMP_NUM_THREADS="1", **HOME)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes=2", "--num_machines=1",
               "--main_process_port=0", *flags, str(script(directory, DUMP))]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=before, capture_output=True, text=True, check=True, timeout=PATIENCE * 60
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("DUMP ")]
    seen = json.loads(line[5:])
    return {name: value for name, value in seen.items() if before.get(name) != value and not TORCHRUNS.fullmatch(name)}


YAML = """\
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 3
machine_rank: 2
num_processes: 24
main_process_ip: 10.0.0.1
main_process_port: 1
gpu_ids: all
deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 2, offload_optimizer_device: cpu, zero3_init_flag: true}
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (["--multi_gpu"], {"mode": "ddp"}),
        (["--use_fsdp", "--fsdp_version=2", "--mixed_precision=bf16"], {"mode": "fsdp2", "mixed_precision": "bf16"}),
        (["--use_deepspeed", "--zero_stage=2", "--gradient_accumulation_steps=4"],
         {"mode": "zero2", "gradient_accumulation_steps": 4}),
        (["--config_file=FILE", "--machine_rank=0"], {"config_file": "FILE"}),
    ],
)  # fmt: skip
def test_a_rank_sees_all_that_accelerate_launch_would_show_it(
    workdir: Path, flags: list[str], settings: dict[str, Any]
) -> None:
    pytest.importorskip("deepspeed")
    file = script(workdir, YAML, "accelerate it.yaml")
    flags = [flag.replace("FILE", str(file)) for flag in flags]
    settings = {key: str(file) if value == "FILE" else value for key, value in settings.items()}
    ours = variables_of(**settings)
    theirs = launched(workdir, *flags)
    assert len(theirs) > 5
    ignored = {"PYTHONPATH"}  # begins with the directory that each was started from
    assert {k: v for k, v in ours.items() if k not in OURS | ignored} == {
        k: v for k, v in theirs.items() if k not in ignored
    }


@pytest.mark.train
def test_a_configuration_in_the_users_home_that_nobody_named_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(YAML)
    expected = variables_of(mode="ddp")
    monkeypatch.setitem(HOME, "HF_HOME", str(tmp_path))
    assert variables_of(mode="ddp") == expected
    assert expected["ACCELERATE_MIXED_PRECISION"] == "no"


@pytest.mark.train
def test_a_file_of_accelerate_config_decides_how_and_the_plan_decides_where(
    launch: Launch, workdir: Path, reference: list[float]
) -> None:
    pytest.importorskip("deepspeed")
    script(workdir, YAML.replace("offload_optimizer_device: cpu, ", ""), "accelerate it.yaml")
    arguments = ("library.accelerate.config_file='accelerate it.yaml'", "library.accelerate.mixed_precision=no")
    accumulation = "library.accelerate.gradient_accumulation_steps=1"
    done = launch(*TRAIN, *arguments, accumulation, "cluster.nproc_per_node=2")
    assert "DistributedType.DEEPSPEED on 2 ranks" in done.stdout, done.stdout + done.stderr
    assert losses_of(done.stdout) == pytest.approx(reference, abs=2e-4)
    assert "ACCELERATE_DEEPSPEED_ZERO_STAGE=3" in (only_run(workdir) / "attempts/000/node-0.log").read_text()
    assert not list(workdir.glob(".deepspeed_env"))


@pytest.mark.train
def test_fsdp_without_a_gpu_is_refused_on_the_node_in_one_line(launch: Launch, workdir: Path) -> None:
    done = launch(*TRAIN, "library.accelerate.mode=fsdp2", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert (
        f"failed: launch ({os.uname().nodename}: RuntimeError: FSDP needs GPUs, and torch sees none here" in done.stderr
    )
    assert not list(only_run(workdir).glob("attempts/000/rank-*.log"))


@pytest.mark.train
@pytest.mark.parametrize(
    "program",
    ["from accelerate import PartialState\nPartialState()\nprint('trained')\n", "print('never joins')\n"],
)
def test_never_independent_runs_that_all_report_success(launch: Launch, workdir: Path, program: str) -> None:
    script(workdir, program)
    done = launch(*LIBRARY, "task.path='train it.py'", "cluster.nproc_per_node=2", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "sees a world of 1 ranks here, and the plan has 2" in done.stderr
    assert "trained" not in done.stdout
    assert result_of(only_run(workdir))["outcome"] == "failed"


@pytest.mark.train
@pytest.mark.slurm
@pytest.mark.parametrize("mode", KINDS)
def test_two_nodes_train_as_two_ranks_of_one(
    sandbox: Sandbox, workdir: Path, mode: str, reference: list[float]
) -> None:
    pytest.importorskip("deepspeed")
    place = ("cluster=sandbox", "cluster.nodes=2", "cluster.nproc_per_node=1", "wait=true")
    done = launch_on(sandbox, workdir, *TRAIN, f"library.accelerate.mode={mode}", *place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"DistributedType.{KINDS[mode]} on 2 ranks" in done.stdout
    assert losses_of(done.stdout) == pytest.approx(reference, abs=2e-4)
    assert not os.path.exists(workdir / ".deepspeed_env")
