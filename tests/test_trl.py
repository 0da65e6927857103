"""TRL's own scripts under the launcher: started, batched, stopped, killed, resumed. Offline, on a model made here."""

import json
import os
import signal
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
from launcher.records import checkpoints
from tests.conftest import PATIENCE, Launch, environment, launcher_command, result_of, runs_in
from tests.sandbox import Sandbox
from tests.test_local import metrics_of, processes_of, wait_until
from tests.test_slurm import in_cluster, job_of

HERE = Here("the-run", Path("/runs"), Path("/work"), "/python")
SFT = ("task=sft", "library=trl")


def plan_of(*overrides: str) -> Plan:
    config = compose([*SFT, *overrides]).config
    validate(config)
    return build(config, HERE)


def option(plan: Plan, name: str) -> str | None:
    return plan.entry[plan.entry.index(f"--{name}") + 1] if f"--{name}" in plan.entry else None


def test_the_script_is_trls_own_and_its_output_is_in_the_run() -> None:
    plan = plan_of("task.args.model_name_or_path=tiny", "max_iterations=9", "seed=3", "cluster.device=cpu")
    assert plan.entry[:6] == ("/python", "-u", "-m", "launcher.train.trl", "-m", "trl.scripts.sft")
    assert option(plan, "output_dir") == "/runs/the-run/checkpoints"
    assert (option(plan, "max_steps"), option(plan, "seed"), option(plan, "use_cpu")) == ("9", "3", "true")
    assert option(plan_of("cluster=a100x2"), "use_cpu") is None


@pytest.mark.parametrize(("precision", "given"), [("no", ["bf16", "false"]), ("fp16", ["fp16", "true"])])
def test_the_precision_is_also_told_to_trl_which_has_a_default_of_its_own(precision: str, given: list[str]) -> None:
    name, value = given
    assert option(plan_of(f"library.accelerate.mixed_precision={precision}"), name) == value
    assert option(plan_of(), "bf16") is None


def test_arguments_as_a_list_or_a_mapping_and_they_win() -> None:
    for args in ("task.args=[--seed, 5, '--output_dir=/out']", "task.args={seed: 5, output_dir: /out}"):
        entry = plan_of(args).entry
        assert entry.count("--seed") == 1
        assert "/runs/the-run/checkpoints" not in entry


@pytest.mark.parametrize(
    ("nodes", "per_device", "accumulation"), [(1, 1, 16), (1, 4, 4), (4, 4, 1), (2, None, 1), (1, None, 2)]
)
def test_a_global_batch_size_finds_the_accumulation_for_any_number_of_ranks(
    nodes: int, per_device: int | None, accumulation: int
) -> None:
    given = [] if per_device is None else [f"task.args.per_device_train_batch_size={per_device}"]
    plan = plan_of("cluster=a100x2", f"cluster.nodes={nodes}", "task.global_batch_size=32", *given)
    assert option(plan, "gradient_accumulation_steps") == str(accumulation)
    assert plan.values()["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == str(accumulation)


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["task.args.per_device_train_batch_size=5"], "no multiple of 5 per device × 2 ranks = 10; "
         "per_device_train_batch_size that would fit: 1, 2, 4, 8, 16"),
        (["cluster.nproc_per_node=3"], "3 ranks do not divide 32"),
        (["task.args.per_device_train_batch_size=4", "task.args.gradient_accumulation_steps=3"], "and 3 is set"),
        (["task.args.per_device_train_batch_size=x"], "a whole number"),
        (["library.accelerate.gradient_accumulation_steps=2", "task.args.gradient_accumulation_steps=3"], "differ"),
    ],
)  # fmt: skip
def test_a_global_batch_size_that_cannot_be_is_one_line_and_exit_code_2(
    launch: Launch, overrides: list[str], answer: str
) -> None:
    done = launch(*SFT, "cluster.nproc_per_node=2", "task.global_batch_size=32", *overrides, "dry_run=true")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert answer in done.stderr


@pytest.mark.train
def test_checkpoints_in_an_output_directory_elsewhere_are_found_too(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"x" * 100)
        checkpoints.seal_in_place(tmp_path / f"checkpoint-{step}", step, 1)
    os.truncate(tmp_path / "checkpoint-4" / "optimizer.pt", 50)
    program = f"from launcher.train.trl import newest\nprint(newest(['--output_dir', {str(tmp_path)!r}]))"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout
    assert found.strip().endswith("checkpoint-2")


def test_trl_runs_trls_scripts_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="task=sft, dpo or grpo"):
        validate(compose(["task=script", "library=trl", "task.module=my.train"]).config)


def test_the_dry_run_shows_the_effective_batch(launch: Launch) -> None:
    shown = launch(*SFT, "cluster=a100x8", "task.args.per_device_train_batch_size=2", "task.global_batch_size=64",
                   "dry_run=true").stdout  # fmt: skip
    assert "batch      2 × 8 × 4 = 64 (per device × ranks × accumulation)" in shown
    assert "batch      8 × 1 × 1 = 8 " in launch(*SFT, "dry_run=true").stdout


OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data sets; also the home of Hugging Face's caches, so that nothing of the user's is touched."""
    pytest.importorskip("trl")
    from tests.tiny_model import make

    directory = tmp_path_factory.mktemp("tiny")
    make(directory)
    return directory


def offline(tiny: Path) -> dict[str, str]:
    return {**OFFLINE, "HF_HOME": str(tiny / "home")}


def arguments(tiny: Path, kind: str, **args: Any) -> tuple[str, ...]:
    given = {
        "model_name_or_path": tiny / "model", "dataset_name": tiny / kind, "logging_steps": 1, "report_to": "none",
        "learning_rate": 0.001, "dataloader_pin_memory": "false", **args,
    }  # fmt: skip
    return (f"task={kind}", "library=trl", *(f"task.args.{key}='{value}'" for key, value in given.items()))


def runs_of(workdir: Path) -> list[Path]:
    return runs_in(workdir / "runs")


def weights(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


def same(one: Path, other: Path, tolerance: float = 0.0) -> bool:
    import torch

    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) or torch.allclose(first[name], second[name], rtol=0, atol=tolerance)
        for name in first
    )


DEADLY = """\
import os, signal, sys
from transformers import TrainerCallback, trainer
from launcher.train import trl

class Die(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 5 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

trainer.DEFAULT_CALLBACKS.append(Die)
trl.main(sys.argv[1:])
"""


def _deadly(workdir: Path) -> str:
    """A runner in whose second rank the machine fails after the fifth step."""
    (workdir / "deadly.py").write_text(DEADLY)
    return "deadly"


def test_the_seal_of_a_checkpoint_covers_what_lies_in_folders_and_nothing_is_removed(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        (tmp_path / f"checkpoint-{step}" / "global_step").mkdir(parents=True)
        (tmp_path / f"checkpoint-{step}" / "global_step" / "zero.pt").write_bytes(b"x" * 100)
        checkpoints.seal_in_place(tmp_path / f"checkpoint-{step}", step, 2)
    newest = checkpoints.newest_whole(tmp_path)
    assert newest is not None and (newest.path.name, newest.world_size) == ("checkpoint-10", 2)
    os.truncate(tmp_path / "checkpoint-10" / "global_step" / "zero.pt", 50)
    before = checkpoints.newest_whole(tmp_path)
    assert before is not None and before.path.name == "checkpoint-2"


@pytest.mark.train
def test_killed_and_resumed_from_the_newest_valid_checkpoint_it_ends_bit_for_bit_the_same(
    launch: Launch, workdir: Path, tiny: Path
) -> None:
    sft = arguments(tiny, "sft", save_steps=2, per_device_train_batch_size=2)
    where = ("cluster.nproc_per_node=2", "max_iterations=8")
    whole = launch(*sft, *where, **offline(tiny))
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert result_of(runs_of(workdir)[0])["cause"] == "max_steps"
    killed = launch(*sft, *where, f"library.runner={_deadly(workdir)}", **offline(tiny))
    assert killed.returncode == 1
    torn = runs_of(workdir)[1]
    assert result_of(torn)["signal"] == "SIGKILL"
    assert {path.name for path in torn.glob("checkpoints/checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    os.truncate(torn / "checkpoints/checkpoint-4/optimizer.pt", 1000)
    resumed = launch(*sft, *where, "resume=latest", **offline(tiny))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    last = runs_of(workdir)[2]
    start = json.loads((last / "attempts/000/rendezvous.json").read_text())
    assert Path(start["resume"]).name == "checkpoint-2"
    assert [line["iteration"] for line in metrics_of(last)] == list(range(3, 9))
    assert same(runs_of(workdir)[0] / "checkpoints", last / "checkpoints")
    assert not same(torn / "checkpoints/checkpoint-2", last / "checkpoints")  # it did train


@pytest.mark.train
def test_asked_to_stop_all_ranks_save_after_the_same_step(workdir: Path, tiny: Path) -> None:
    sft = arguments(tiny, "sft", save_steps=10_000, per_device_train_batch_size=2)
    command = launcher_command(*sft, "cluster.nproc_per_node=2", "max_iterations=10000")
    process = subprocess.Popen(command, cwd=workdir, env=environment(**offline(tiny)), stdout=subprocess.DEVNULL)
    wait_until(lambda: list(workdir.glob("runs/*/metrics.jsonl")), 90)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE * 60) == 130
    (run,) = runs_of(workdir)
    result = result_of(run)
    (saved,) = run.glob("checkpoints/checkpoint-*")
    assert (result["outcome"], saved.name) == ("stopped", f"checkpoint-{result['iteration']}")
    found = checkpoints.read(saved)
    assert found is not None and not checkpoints.problem_of(found.path)
    assert not processes_of(run)


@pytest.mark.train
@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("dpo", {"per_device_train_batch_size": 2}),
        ("grpo", {"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4,
                  "reward_funcs": "tests.rewards.count_letter_e"}),
    ],
)  # fmt: skip
def test_dpo_and_grpo_train(launch: Launch, workdir: Path, tiny: Path, kind: str, args: dict[str, Any]) -> None:
    done = launch(*arguments(tiny, kind, **args), "cluster.nproc_per_node=2", "max_iterations=3", **offline(tiny))
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = runs_of(workdir)
    result = result_of(run)
    assert (result["cause"], result["iteration"], result["world_size"]) == ("max_steps", 3, 2)
    assert [line["iteration"] for line in metrics_of(run)] == [1, 2, 3]
    assert not same(tiny / "model", run / "checkpoints")


@pytest.mark.train
def test_the_same_global_batch_is_the_same_training_however_it_is_divided(
    launch: Launch, workdir: Path, tiny: Path
) -> None:
    # SGD: the first steps of Adam have the sign of a gradient, also of one that is all rounding
    plain = {"optim": "sgd", "learning_rate": 0.5, "save_strategy": "no"}
    for ranks, per_device in ((1, 1), (1, 4), (2, 4)):
        sft = arguments(tiny, "sft", per_device_train_batch_size=per_device, **plain)
        precision = "library.accelerate.mixed_precision=no"  # bf16, which is TRL's default, rounds much more
        where = (f"cluster.nproc_per_node={ranks}", "task.global_batch_size=32", "max_iterations=4", precision)
        done = launch(*sft, *where, **offline(tiny))
        assert done.returncode == 0, done.stdout + done.stderr
    ends = [run / "checkpoints" for run in runs_of(workdir)]
    assert same(ends[0], ends[1], 1e-6) and same(ends[0], ends[2], 1e-6)
    assert not same(ends[0], tiny / "model", 1e-2)  # the weights moved much further than they differ


@pytest.mark.train
@pytest.mark.slurm
def test_sft_on_two_nodes_is_that_on_two_ranks_of_one(
    launch: Launch, sandbox: Sandbox, workdir: Path, tiny: Path
) -> None:
    sft = arguments(tiny, "sft", per_device_train_batch_size=2, save_strategy="no")
    assert launch(*sft, "cluster.nproc_per_node=2", "max_iterations=3", **offline(tiny)).returncode == 0
    place = ("cluster=sandbox", "cluster.nodes=2", "cluster.nproc_per_node=1", "wait=true", "max_iterations=3")
    variables = {**in_cluster(sandbox), **offline(tiny)}
    done = sandbox.run(launcher_command(*sft, *place), cwd=workdir, env=variables, timeout=PATIENCE * 150)
    assert done.returncode == 0, done.stdout + done.stderr
    here, there = (run / "checkpoints" for run in runs_of(workdir))
    assert same(here, there, 1e-6)


@pytest.mark.train
@pytest.mark.slurm
def test_killed_and_resumed_on_two_nodes_with_two_ranks_each_it_ends_bit_for_bit_the_same(
    sandbox: Sandbox, workdir: Path, tiny: Path
) -> None:
    # Else DDP lays its buckets out anew after a process's first step, and four ranks then add in another order.
    sft = arguments(tiny, "sft", save_steps=2, per_device_train_batch_size=2, ddp_find_unused_parameters="true")
    place = ("cluster=sandbox", "cluster.nodes=2", "max_iterations=8", "wait=true")
    variables = {**in_cluster(sandbox), **offline(tiny)}
    codes = [
        sandbox.run(
            launcher_command(*sft, *place, *more), cwd=workdir, env=variables, timeout=PATIENCE * 150
        ).returncode
        for more in ((), (f"library.runner={_deadly(workdir)}",), ("resume=latest",))
    ]
    assert codes == [0, 1, 0]
    whole, torn, resumed = runs_of(workdir)
    assert result_of(torn)["signal"] == "SIGKILL"
    assert [line["iteration"] for line in metrics_of(resumed)] == list(range(5, 9))
    assert same(whole / "checkpoints", resumed / "checkpoints")


@pytest.mark.train
@pytest.mark.slurm
def test_a_requeued_job_saves_and_goes_on_after_the_same_step(sandbox: Sandbox, workdir: Path, tiny: Path) -> None:
    sft = arguments(tiny, "sft", per_device_train_batch_size=1, save_steps=10_000)
    place = ("cluster=sandbox", "cluster.nproc_per_node=1", "max_iterations=250")
    variables = {**in_cluster(sandbox), **offline(tiny)}
    sandbox.run(launcher_command(*sft, *place), cwd=workdir, env=variables, timeout=PATIENCE * 60, check=True)
    (run,) = runs_of(workdir)
    wait_until(lambda: (run / "metrics.jsonl").exists() and len(metrics_of(run)) > 3, 90)
    sandbox.run(["scontrol", "requeue", job_of(run)], check=True)
    wait_until((run / "attempts/001/rendezvous.json").exists, 90)  # which takes back the first attempt's verdict
    wait_until((run / "result.json").exists, 150)
    result = result_of(run)
    assert (result["outcome"], result["iteration"], result["attempts"]) == ("completed", 250, 2)
    start = json.loads((run / "attempts/001/rendezvous.json").read_text())
    assert Path(start["resume"]).parent == run / "checkpoints"
    assert [line["iteration"] for line in metrics_of(run)] == list(range(1, 251))
