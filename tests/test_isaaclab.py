"""Isaac Lab and mjlab: what their ranks are told, and real trainings where their environments are installed."""

import json
import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.literals import quote
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.plan.build import Here, build
from launcher.plan.plan import Plan
from launcher.records import checkpoints
from launcher.records.files import write_json
from tests.conftest import ROOT, Launch, environment, launcher_command, only_run, result_of, runs_in, script
from tests.sandbox import Sandbox
from tests.test_bench import valid
from tests.test_local import metrics_of, processes_of, wait_until
from tests.test_slurm import job_of, launch_on

HERE = Here("the-run", Path("/runs"), Path("/work dir"), "/venv/bin/python")
ISAACLAB = ("library=isaaclab", "task=isaac_cartpole")
MJLAB = ("library=mjlab", "task=mjlab_cartpole")


def plan_of(*overrides: str) -> Plan:
    config = compose(overrides).config
    validate(config)
    return build(config, HERE)


def test_isaac_lab_is_told_what_its_own_launcher_would_tell_it() -> None:
    plan = plan_of(*ISAACLAB, "num_envs=64", "seed=3", "cluster.python=/isaac/bin/python")
    assert plan.entry == (
        "/isaac/bin/python", "-u", "-m", "launcher.train.isaaclab", "--rl_library", "rsl_rl",
        "--task", "Isaac-Cartpole-Direct", "--num_envs", "64", "--max_iterations", "150",
        "--seed", "3", "--run_timestamp", "the-run",
    )  # fmt: skip
    assert plan.python == "/isaac/bin/python"


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ("startup", ()),
        ("runtime", ("--num_steps", "1000", "--warmup_steps", "50")),
        ("training", ("--max_iterations", "9")),
    ],
)
def test_isaac_labs_benchmarks_are_told_what_its_own_launcher_would_tell_them(
    workload: str, told: tuple[str, ...]
) -> None:
    plan = plan_of(*ISAACLAB, f"bench.workload={workload}", "num_envs=64", "max_iterations=9", "seed=3")
    library = ("--rl_library", "rsl_rl") if workload == "training" else ()
    assert plan.entry[3:] == (
        "launcher.train.isaaclab", "--workflow", workload, *library, "--task", "Isaac-Cartpole-Direct",
        "--num_envs", "64", *told, "--seed", "3",
    )  # fmt: skip


@pytest.mark.parametrize("library", ["rl_games", "skrl"])
def test_isaac_lab_learns_with_the_library_that_is_asked_for(library: str) -> None:
    entry = plan_of(*ISAACLAB, f"library.rl_library={library}").entry
    assert entry[entry.index("--rl_library") + 1] == library


def test_arguments_of_the_task_come_last_and_so_win() -> None:
    given = "task.args=['presets=newton_mjwarp', --max_iterations, 7]"
    assert plan_of(*ISAACLAB, given).entry[-3:] == ("presets=newton_mjwarp", "--max_iterations", "7")
    assert plan_of(*MJLAB, "task.args={agent.seed: 9}").entry[-2:] == ("--agent.seed", "9")


def test_mjlab_is_told_its_task_and_the_total() -> None:
    assert plan_of(*MJLAB, "max_iterations=9", "cluster=a100x2", "cluster.nodes=2").entry[3:] == (
        "launcher.train.mjlab", "Mjlab-Cartpole-Balance", "--env.scene.num-envs", "4096",
        "--agent.max-iterations", "9", "--agent.seed", "1", "--agent.logger", "tensorboard",
    )  # fmt: skip


def test_other_libraries_are_told_nothing() -> None:
    assert plan_of().entry[-1] == "launcher.train.rsl_rl"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("library=isaaclab",), "task=cartpole is none of them: use task=isaac_cartpole"),
        (("library=mjlab",), "task=cartpole is none of them: use task=mjlab_cartpole"),
        (("library=isaaclab", "task=mjlab_cartpole"), "task=mjlab_cartpole is none of them"),
        ((*ISAACLAB, "task.env=null"), "task=isaac_cartpole is none of them"),
        ((*ISAACLAB, "library.rl_library=null"), "library.rl_library is missing"),
        ((*MJLAB, "library.rl_library=skrl"), "library.rl_library has no effect with library=mjlab"),
        (("task=isaac_cartpole",), "use library=isaaclab"),
        (("task=script", "library=isaaclab"), "task=script is none of them"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan_of(*overrides)


def test_a_checkpoint_of_another_library_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.train.observed import checkpoint_file

    draft = checkpoints.Draft(tmp_path, 4)
    draft.write("skrl.pt", lambda file: file.write(b"weights"))
    draft.seal(1, ["skrl.pt"])
    monkeypatch.setenv("LAUNCHER_RESUME", str(draft.publish()))
    assert checkpoint_file("skrl") == (4, tmp_path / "000000004" / "skrl.pt")
    with pytest.raises(RuntimeError, match="is not a checkpoint of rsl_rl"):
        checkpoint_file("rsl_rl")
    monkeypatch.delenv("LAUNCHER_RESUME")
    assert checkpoint_file("rsl_rl") is None


def test_nothing_of_torch_is_changed_where_cuda_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch.distributed as dist

    from launcher.train import cpu_ranks

    before = (dist.init_process_group, torch.cuda.set_device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cpu_ranks.settle("auto") is False
    assert (dist.init_process_group, torch.cuda.set_device) == before


def test_without_cuda_nccl_becomes_gloo_and_cuda_is_not_pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch.distributed as dist

    from launcher.train import cpu_ranks

    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "set_device", torch.cuda.set_device)
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **kwargs: asked.append((args, kwargs)))
    assert cpu_ranks.settle("auto") is True
    dist.init_process_group("nccl", rank=1, world_size=2)
    torch.cuda.set_device(1)
    assert asked == [(("gloo",), {"rank": 1, "world_size": 2})]
    with pytest.raises(RuntimeError, match="torch sees no GPU here"):
        cpu_ranks.settle("cuda")


def test_old_normalisers_of_rsl_rl_learn_what_new_ones_do() -> None:
    import torch
    from rsl_rl.modules import EmpiricalNormalization

    from launcher.train import observed_rsl_rl

    theirs, ours = EmpiricalNormalization(3), EmpiricalNormalization(3)
    for seed in range(4):
        samples = torch.randn(16, 3, generator=torch.Generator().manual_seed(seed)) * 3 + seed
        theirs.update(samples)
        observed_rsl_rl._update(ours, samples)
    for name, tensor in theirs.state_dict().items():
        assert torch.allclose(tensor, ours.state_dict()[name]), name


@pytest.mark.train
@pytest.mark.parametrize(("arguments", "target"), [(ISAACLAB, "isaaclab-env"), (MJLAB, "mjlab-env")])
def test_an_interpreter_without_the_library_is_told_how_to_get_one(
    launch: Launch, workdir: Path, arguments: tuple[str, ...], target: str
) -> None:
    done = launch(*arguments, "cluster.device=cpu")
    assert done.returncode == 1
    assert f"make {target}" in done.stderr


@dataclass(frozen=True)
class Installed:
    """A library in an environment of its own, and the arguments of a small training with it."""

    arguments: tuple[str, ...]
    checkpoint: str


def interpreter(name: str) -> str:
    """The library's own interpreter; skips the test where there is none."""
    default = ROOT / f".venv-{name}" / "bin" / "python"
    path = os.environ.get(f"LAUNCHER_{name.upper()}_PYTHON") or (str(default) if default.exists() else None)
    if path is None:
        pytest.skip(f"no {name} here: `make {name}-env`, or LAUNCHER_{name.upper()}_PYTHON=…/bin/python")
    return path


def installed(name: str, directory: Path, rl_library: str = "rsl_rl") -> Installed:
    python = interpreter(name)
    common = (f"cluster.python={python}", "cluster.device=cpu", "num_envs=16", "checkpoint.every=2")
    if name == "mjlab":
        return Installed((*MJLAB, *common), "rsl_rl.pt")
    assets = directory / "assets"
    subprocess.run([python, str(ROOT / "scripts/isaaclab_assets.py"), str(assets)], check=True)
    small = ("task.args=['agent.params.config.minibatch_size=256']",) if rl_library == "rl_games" else ()
    place = (f"cluster.env.ISAACSIM_ASSET_ROOT={assets}", f"library.rl_library={rl_library}")
    return Installed((*ISAACLAB, *common, *place, *small), f"{rl_library}.pt")


@pytest.fixture(params=["mjlab rsl_rl", "isaaclab rsl_rl", "isaaclab rl_games", "isaaclab skrl"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Installed:
    name, rl_library = request.param.split()
    return installed(name, tmp_path, rl_library)


@contextmanager
def under_way(workdir: Path, arguments: tuple[str, ...]) -> Generator[tuple["subprocess.Popen[bytes]", Path]]:
    """A run's command and directory, once it has done some of very many iterations."""
    command = subprocess.Popen(
        launcher_command(*arguments, "max_iterations=5000"), cwd=workdir, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: list(workdir.glob("runs/*/metrics.jsonl")), 800)
        run = only_run(workdir)
        wait_until(lambda: len(metrics_of(run)) >= 3, 120)
        yield command, run
    finally:
        command.kill()  # without its command a training ends


@pytest.mark.train
@pytest.mark.timeout(1800)
def test_two_ranks_train_stop_and_go_on_where_they_stopped(library: Installed, launch: Launch, workdir: Path) -> None:
    both = (*library.arguments, "cluster.nproc_per_node=2")
    with under_way(workdir, both) as (command, first):
        command.send_signal(signal.SIGINT)
        assert command.wait(120) == 130
    assert not processes_of(first)
    result = result_of(first)
    assert (result["outcome"], result["cause"], result["world_size"]) == ("stopped", "interrupted", 2)
    assert result["ranks_in_sync"] is True
    done = result["iteration"]
    assert (first / "checkpoints" / f"{done:09}" / library.checkpoint).is_file()
    assert [line["iteration"] for line in metrics_of(first)] == list(range(1, done + 1))
    assert list(first.rglob("events.out.tfevents.*"))

    resumed = launch(*both, f"max_iterations={done + 2}", f"resume={first.name}", timeout=600)
    assert resumed.returncode == 0, resumed.stderr
    second = max(runs_in(workdir / "runs"))
    assert [line["iteration"] for line in metrics_of(second)] == [done + 1, done + 2]
    assert {"env_steps", "fps", "return_mean", "learning_rate"} <= metrics_of(second)[-1].keys()
    assert result_of(second)["cause"] == "max_iterations"
    assert result_of(second)["ranks_in_sync"] is True
    assert not (ROOT / "logs").exists() and not (workdir / "logs").exists()
    seeds = {(second / "attempts/000" / f"rank-{rank}.log").read_text().count(f"seed {1 + rank},") for rank in (0, 1)}
    assert seeds == {1}


def process_of_rank(run: Path, rank: int) -> int:
    """The process that is a rank of a live run: those that it started itself came later."""
    mark = f"RANK={rank}".encode()
    return min(pid for pid in processes_of(run) if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


@pytest.mark.train
@pytest.mark.timeout(1800)
def test_a_killed_rank_is_named_and_no_process_is_left(library: Installed, workdir: Path) -> None:
    with under_way(workdir, (*library.arguments, "cluster.nproc_per_node=2", "retry.crash=0")) as (command, run):
        os.kill(process_of_rank(run, 1), signal.SIGKILL)
        assert command.wait(120) == 1
    result = result_of(run)
    assert (result["outcome"], result["cause"], result["rank"]) == ("failed", "crash", 1)
    assert (result["signal"], result["exit_code"]) == ("SIGKILL", None)
    assert not processes_of(run)


FAULTY = """\
import os
from isaaclab.envs import DirectRLEnv

def install():
    original = DirectRLEnv.step

    def step(env, action):
        if os.environ["RANK"] == "1" and env.common_step_counter > 20:
            raise ValueError("the cart is gone")
        return original(env, action)

    DirectRLEnv.step = step
    return []
"""


@pytest.mark.train
@pytest.mark.timeout(1800)
def test_an_environment_that_raises_is_named_with_its_reason(launch: Launch, workdir: Path, tmp_path: Path) -> None:
    script(workdir, FAULTY, "faulty.py")
    callback = ("task.args=[--external_callback, faulty.install]", f"cluster.env.PYTHONPATH={quote(str(workdir))}")
    done = launch(*installed("isaaclab", tmp_path).arguments, *callback, "cluster.nproc_per_node=2", timeout=900)
    assert done.returncode == 1
    run = only_run(workdir)
    result = result_of(run)
    assert (result["rank"], result["exit_code"], result["message"]) == (1, 1, "ValueError: the cart is gone")
    assert not processes_of(run)


TWO_NODES = ("cluster=sandbox", "cluster.nodes=2", "cluster.nproc_per_node=1", "cluster.mem_per_gpu=4G")


@pytest.mark.train
@pytest.mark.slurm
@pytest.mark.timeout(1800)
def test_two_nodes_train_as_one(sandbox: Sandbox, library: Installed, workdir: Path) -> None:
    arguments = (*library.arguments, *TWO_NODES, "max_iterations=2", "wait=true")
    done = launch_on(sandbox, workdir, *arguments, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(workdir)
    result = result_of(run)
    assert (result["outcome"], result["world_size"], result["iteration"]) == ("completed", 2, 2)
    assert result["ranks_in_sync"] is True
    assert len(json.loads((run / "attempts/000/rendezvous.json").read_text())["hosts"]) == 2
    (logs,) = run.glob("logs/*/*/*")  # one for both nodes
    assert run.name in logs.name


@pytest.mark.train
@pytest.mark.slurm
@pytest.mark.timeout(1800)
def test_a_requeued_job_goes_on_at_the_next_iteration(sandbox: Sandbox, workdir: Path, tmp_path: Path) -> None:
    arguments = (*installed("isaaclab", tmp_path).arguments, *TWO_NODES, "max_iterations=40")
    assert launch_on(sandbox, workdir, *arguments).returncode == 0
    run = only_run(workdir)
    wait_until(lambda: (run / "metrics.jsonl").exists() and len(metrics_of(run)) > 3, 800)
    sandbox.run(["scontrol", "requeue", job_of(run)], check=True)
    wait_until((run / "attempts/001/rendezvous.json").exists, 120)  # which takes back the first attempt's verdict
    wait_until((run / "result.json").exists, 600)
    result = result_of(run)
    assert (result["outcome"], result["iteration"], result["attempts"]) == ("completed", 40, 2)
    assert result["ranks_in_sync"] is True
    resume = Path(json.loads((run / "attempts/001/rendezvous.json").read_text())["resume"])
    assert resume.parent == run / "checkpoints"
    done = int(resume.name)
    for rank in (0, 1):
        log = (run / "attempts/001" / f"rank-{rank}.log").read_text()
        assert f"{done} iterations are done, {40 - done} are left" in log
    assert [line["iteration"] for line in metrics_of(run)] == list(range(1, 41))


FLAGS = """\
from isaaclab.cli.multigpu import build_parser
from isaaclab_rl.entrypoints.multigpu import LAUNCHER_CFG
for action in build_parser(LAUNCHER_CFG)._actions:
    print("FLAGS", *action.option_strings)
"""


@pytest.mark.train
def test_every_flag_of_isaac_labs_launcher_is_in_the_table() -> None:
    done = subprocess.run(
        [interpreter("isaaclab"), "-c", FLAGS], capture_output=True, text=True, check=True, timeout=300
    )
    table = (ROOT / "docs" / "isaaclab.md").read_text()
    flags = [flag for line in done.stdout.splitlines() if line.startswith("FLAGS") for flag in line.split()[1:]]
    assert len(flags) > 20
    assert not [flag for flag in flags if flag not in ("-h", "--help") and f"`{flag}`" not in table]


READ = """\
import json, pathlib, sys, types, typing
from dataclasses import is_dataclass
from isaaclab.benchmark import BaseIsaacLabBenchmark, console, schema

def built(kind, value):
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return None if value is None else built(arguments[0], value)
    if typing.get_origin(kind) in (list, dict):
        each = arguments[-1]
        return [built(each, one) for one in value] if isinstance(value, list) else {
            name: built(each, one) for name, one in value.items()}
    if not is_dataclass(kind):
        return value
    hints = typing.get_type_hints(kind)
    return kind(**{name: built(hints[name], one) for name, one in value.items()})

name, source, target = sys.argv[1:]
bundle = built(getattr(schema, name), json.loads(pathlib.Path(source).read_text()))
benchmark = BaseIsaacLabBenchmark("read", "schema,omniperf,osmo,json,summary", target, use_recorders=False)
benchmark.attach_bundle(bundle)
written = benchmark.finalize()
report = getattr(console, f"print_{name.removesuffix('Bundle').lower()}_report")
report(bundle, written, *([{}] if name == "StartupBundle" else []))
print("SCHEMA", next(path for path in written if path.stem.endswith("_schema")))
"""
BUNDLES = {"startup": "StartupBundle", "runtime": "RuntimeBundle", "training": "TrainingBundle"}


def same(ours: Any, read: Any) -> bool:
    """Whether all that is ours is still there; Isaac Lab adds defaults."""
    if isinstance(ours, dict):
        return all(same(value, read[key]) for key, value in ours.items())
    return ours == read


@pytest.mark.train
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("workload", "ranks"), [("startup", 1), ("runtime", 2), ("training", 2)])
def test_isaac_labs_own_benchmark_is_measured_on_all_ranks_and_its_tools_read_the_bundle(
    launch: Launch, workdir: Path, tmp_path: Path, workload: str, ranks: int
) -> None:
    """Its tools: the classes of its schema, which refuse what they do not know, its formatters and its report."""
    words = (*installed("isaaclab", tmp_path).arguments, f"cluster.nproc_per_node={ranks}", "max_iterations=6")
    done = launch("bench", workload, *words, "bench.steps=40", "--json", timeout=400)
    assert done.returncode == 0, done.stderr
    bundle = valid(json.loads(done.stdout))
    extra = bundle["extra"]
    assert bundle["run"]["config"]["physics_backend"] == "newton_mjwarp"
    assert extra["ranks"].keys() >= {
        "launch",
        "python_imports",
        "task_config",
        "app_launch",
        "env_creation",
        "first_step",
    }
    assert [rank["rank"] for rank in extra["per_rank"]] == [*range(ranks)]
    if workload == "startup":
        assert bundle["phases"]["env_creation"]["top_functions"]
    else:
        rate, frames = bundle["runtime"]["total_fps"], bundle["runtime"]["steps_per_iteration"]
        assert rate["mean"] == pytest.approx(frames / bundle["runtime"]["iteration_time_s"]["mean"])
        assert frames == {"runtime": 16, "training": 2 * 16 * 16}[workload]
    if workload == "training":
        assert 0 < extra["ranks"]["sync_s"]["min"] < extra["ranks"]["learn_s"]["max"]
        assert result_of(only_run(workdir))["ranks_in_sync"] is True

    write_json(tmp_path / "ours.json", bundle)
    command = [
        interpreter("isaaclab"),
        "-c",
        READ,
        BUNDLES[workload],
        str(tmp_path / "ours.json"),
        str(tmp_path / "out"),
    ]
    read = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert read.returncode == 0, read.stderr
    assert f"{workload.capitalize()} summary: Isaac-Cartpole-Direct" in read.stdout
    written = next(line.split()[1] for line in read.stdout.splitlines() if line.startswith("SCHEMA "))
    assert same(bundle, json.loads(Path(written).read_text()))
