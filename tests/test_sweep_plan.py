"""Sweeps before anything is submitted: which runs there are, how they are composed, which arrays they become."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.compose import compose
from launcher.config.many import Composer
from launcher.config.schema import Cluster, Config, Scheduler
from launcher.errors import UserError
from launcher.node.pack import share_out
from launcher.plan.build import Here, build
from launcher.submission.arrays import Member, arrays, directives, packed
from tests.conftest import Launch, runs_in

CHOICES: dict[str, list[str]] = {
    "task": ["cartpole", "pendulum"],
    "cluster": ["local", "a100x2"],
    "seed": ["1", "7"],
    "name": ["null", "'a b, $HOME'", "'1e5'"],
    "cluster.time": ["'1:30:00'", "null"],
    "++cluster.env.X": ["a", "'b,c=d'"],
    "task.args": ["{lr: 1}", "{momentum: 2}", "[a, b]"],
    "agent.algorithm.gamma": ["0.5", "0.9"],
    "nccl": ["[]", "[+ib_off]"],
}


@st.composite
def sweeps(draw: Callable[..., Any]) -> list[list[str]]:
    """Some runs over the same keys, as a grid or another sweeper gives them."""
    keys = draw(st.lists(st.sampled_from(list(CHOICES)), unique=True, min_size=1, max_size=4))
    run = st.tuples(*(st.sampled_from(CHOICES[key]) for key in keys))
    return [
        [f"{key}={value}" for key, value in zip(keys, values)] for values in draw(st.lists(run, min_size=2, max_size=3))
    ]


@settings(max_examples=8)
@given(sweeps())
def test_every_run_of_a_sweep_is_composed_as_it_would_be_alone(runs: list[list[str]]) -> None:
    together = list(Composer().each(runs))
    for run, composed in zip(runs, together):
        alone = compose(run)
        assert (composed.config, composed.yaml) == (alone.config, alone.yaml)


def test_values_that_python_calls_equal_stay_apart_in_the_records() -> None:
    composed = Composer().each([[f"agent.algorithm.gamma={value}"] for value in ("1", "1.0", "true", "'1'")])
    found = [yaml.safe_load(one.yaml)["agent"]["algorithm"]["gamma"] for one in composed]
    assert [(value, type(value)) for value in found] == [(1, int), (1.0, float), (True, bool), ("1", str)]


def on_slurm(gpus_per_node: int, **cluster: Any) -> Config:
    return Config(cluster=Cluster(scheduler=Scheduler.slurm, gpus_per_node=gpus_per_node, **cluster))


def on_slurm_script(gpus_per_node: int, **cluster: Any) -> Config:
    config = on_slurm(gpus_per_node, **cluster)
    config.task.path = "x.py"
    return config


def members(count: int, **cluster: Any) -> list[Member]:
    found: list[Member] = []
    for number in range(count):
        config = on_slurm_script(2, **cluster)
        plan = build(config, Here(f"run-{number:04}", Path("/runs"), Path("/w"), "python"))
        found.append(Member(plan, plan))
    return found


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 20))
def test_arrays_hold_every_run_once_in_order_and_are_never_too_long(count: int, pack: int, most: int) -> None:
    shared = build(on_slurm_script(pack), Here("shared", Path("/runs"), Path("/w"), "python"))
    runs = [Member(one.plan, shared if pack > 1 else one.plan) for one in members(count)]
    found = arrays(runs, most)
    assert [plan.run_id for array in found for task in array.tasks for plan in task] == [
        one.plan.run_id for one in runs
    ]
    assert all(len(array.tasks) <= most and max(map(len, array.tasks)) <= pack for array in found)
    assert len(found) == math.ceil(math.ceil(count / pack) / most)


def test_runs_that_ask_slurm_for_something_else_come_in_an_array_of_their_own() -> None:
    found = arrays([*members(3), *members(2, time="1:00:00"), *members(1)], 1000)
    assert [array.runs for array in found] == [4, 2]


def test_a_limit_of_runs_at_a_time_holds_over_all_arrays() -> None:
    first, second = arrays(members(8), 5)
    assert directives(first, 3, None)["array"] == "0-4%3"
    later = directives(second, 3, "77")
    assert (later["array"], later["dependency"]) == ("0-2%3", "afterany:77")
    assert directives(first, None, None)["array"] == "0-4"


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 70))
def test_slots_share_nothing_but_cpus_where_these_are_too_few(count: int, gpus: int, cpus: int) -> None:
    slots = share_out(count, [str(gpu) for gpu in range(gpus)], list(range(cpus)))
    given_gpus = [gpu for slot in slots for gpu in slot.gpus]
    assert len(slots) == count and len(given_gpus) == len(set(given_gpus)) == gpus // count * count
    assert all(slot.cpus for slot in slots)
    if cpus >= count:
        assert len({cpu for slot in slots for cpu in slot.cpus}) == sum(len(slot.cpus) for slot in slots)


def of_pack(pack: int, config: Config) -> Config:
    config.sweep.pack = pack
    return config


@pytest.mark.parametrize(
    ("runs", "nodes", "gpus", "cpus"),
    [(20, 2, "4", 32), (8, 2, "4", 32), (5, 2, "4", 32), (3, 1, "3", 24), (1, 1, "1", 8)],
)
def test_packed_runs_have_one_gpu_each_and_share_nodes_no_more_than_they_need(
    runs: int, nodes: int, gpus: str, cpus: int
) -> None:
    config = of_pack(8, on_slurm_script(4, cpus_per_gpu=8, mem_per_gpu="16G"))
    one, allocation = (build(each, Here("r", Path("/runs"), Path("/w"), "python")) for each in packed(config, runs))
    assert (one.resources.world_size, one.resources.gpus_per_node) == (1, 1)
    assert (allocation.directives["nodes"], allocation.directives["gpus-per-node"]) == (nodes, gpus)
    assert allocation.directives["cpus-per-task"] == cpus


@pytest.mark.parametrize("cluster", [{"nodes": 2}, {"nproc_per_node": 2}])
def test_runs_of_several_ranks_are_not_packed(cluster: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"sweep\.pack=4 packs runs of one rank"):
        packed(of_pack(4, on_slurm(4, **cluster)), 9)


def test_a_pack_that_does_not_fill_its_nodes_is_refused() -> None:
    with pytest.raises(UserError, match=r"does not fill nodes of 4 GPUs"):
        packed(of_pack(6, on_slurm(4)), 9)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("task=cartpole,pendulm",), "there is no task 'pendulm'; did you mean pendulum?"),
        (("sed=1,2",), "there is no key 'sed'; did you mean seed?"),
        (("seed=1,x",), "bad value for seed"),
        (("hydra/sweeper=optna", "seed=1,2"), "there is no hydra/sweeper 'optna'; did you mean optuna?"),
        (("seed=1,-2",), "seed=-2 is too small"),
        (("sweep.pack=2", "cluster=a100x2", "cluster.nodes=2", "seed=1,2"), "sweep.pack=2 packs runs of one rank"),
        (("cluster=local,a100x2", "cluster.nproc_per_node=1"), "a sweep runs either here or on Slurm"),
    ],
)
def test_a_mistake_in_any_run_ends_the_sweep_in_one_line_before_anything_is_written(
    launch: Launch, workdir: Path, words: tuple[str, ...], complaint: str
) -> None:
    done = launch("-m", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert complaint in done.stderr
    assert not (workdir / "runs").exists()


def test_a_dry_run_of_a_sweep_lists_its_runs_and_writes_nothing(launch: Launch, workdir: Path) -> None:
    done = launch("-m", "task=cartpole,pendulum", "seed=range(1,4)", "cluster=a100x2", "dry_run=true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 runs · 1 array\n")
    assert "0005  task=pendulum seed=3 cluster=a100x2" in done.stdout
    assert "#SBATCH --gpus-per-node=a100:2" in done.stdout
    assert not (workdir / "runs").exists()


BESIDE = """\
import os, sys, time
from pathlib import Path
Path("runs-" + Path(os.environ["LAUNCHER_RUN_DIR"]).name).touch()
while len(list(Path().glob("runs-*"))) < min(2, len(os.sched_getaffinity(0))):
    time.sleep(0.05)
"""
"""Ends only if two of its kind have run at the same time, which takes two CPUs."""


@pytest.mark.train
def test_a_sweep_here_runs_beside_each_other_and_shows_each_runs_end(launch: Launch, workdir: Path) -> None:
    (workdir / "t.py").write_text(f"{BESIDE}sys.exit('bad' in sys.argv)\n")
    script = ("task=script", "library=torchrun", "task.path=t.py", "cluster.device=cpu")
    done = launch("-m", *script, "task.args=[a],[bad],[c]", "sweep.parallel=3")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 completed, 1 failed" in done.stdout
    rows = json.loads(launch("status", runs_in(workdir / "runs")[0].name, "--json").stdout)
    assert [(row["overrides"], row["state"]) for row in rows] == [
        ("task.args=[a]", "completed"), ("task.args=[bad]", "failed"), ("task.args=[c]", "completed"),
    ]  # fmt: skip
    (whole,) = json.loads(launch("status", "--json").stdout)
    assert (whole["state"], whole["detail"]) == ("failed", "3 runs: 1 failed, 2 completed")
    again = launch("resume", "--failed", whole["run_id"])
    assert (again.returncode, "1 failed" in again.stdout) == (1, True)
    assert len(list((workdir / "runs").glob("*/*-0001/attempts/*"))) == 2
    assert len(list((workdir / "runs").glob("*/*-0000/attempts/*"))) == 1


@pytest.mark.train
def test_a_sweep_here_gives_each_run_a_device_of_its_own(launch: Launch, workdir: Path) -> None:
    (workdir / "t.py").write_text(f"{BESIDE}print('SEES', os.environ['CUDA_VISIBLE_DEVICES'])\n")
    script = ("task=script", "library=torchrun", "task.path=t.py", "seed=1,2,3")
    done = launch("-m", *script, CUDA_VISIBLE_DEVICES="4,GPU-7f")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 runs, 2 at a time on this machine" in done.stdout
    logs = [path.read_text() for path in sorted((workdir / "runs").glob("*/*/attempts/000/rank-0.log"))]
    assert set(logs) == {"SEES 4\n", "SEES GPU-7f\n"} and len(logs) == 3


LOSS = """\
import json, os, sys
with open(os.environ["LAUNCHER_PROGRESS"], "a") as file:
    print(json.dumps({"iteration": 1, "loss": 0.25}), file=file)
"""


@pytest.mark.train
def test_the_table_of_a_sweep_shows_the_sweeps_metric(launch: Launch, workdir: Path) -> None:
    (workdir / "t.py").write_text(LOSS)
    script = ("task=script", "library=torchrun", "task.path=t.py", "cluster.device=cpu")
    done = launch("-m", *script, "seed=1,2", "sweep.metric=loss")
    assert done.returncode == 0, done.stdout + done.stderr
    table = launch("status", runs_in(workdir / "runs")[0].name).stdout.splitlines()
    assert "METRIC" in table[0] and [("seed=1" in table[1], "loss 0.25" in table[1]), "loss 0.25" in table[2]] == [
        (True, True),
        True,
    ]
