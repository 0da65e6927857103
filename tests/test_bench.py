"""Benchmarks of tasks: what is measured, by whom, what becomes of it, and which ones there cannot be."""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.bench_scaling import describe_scaling
from launcher.cli.bench_text import describe_bundle
from launcher.config.bench import scaling_runs
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.records import bundle as bundles
from launcher.records.bundle import bundle_of, parts_of, write_bundle
from launcher.records.comparison import compared
from launcher.records.files import write_json
from launcher.records.measured import PARTS, rate, side_by_side, summary
from launcher.records.reading import load_run
from launcher.records.result import Result
from launcher.records.rundir import RunDir
from launcher.records.scaling import caption_of, summed_up
from launcher.report.scaling_chart import draw
from tests.conftest import Launch, only_run, result_of
from tests.made_records import BEGAN, ended_bundle, make_benchmark, make_run
from tests.sandbox import Sandbox
from tests.test_slurm import launch_on

SCHEMA = json.loads(Path(bundles.__file__).with_name("bundle.schema.json").read_text())
ISAACLAB = ["training", "library=isaaclab", "task=isaac_cartpole"]
TWO_RANKS = ("cluster.nproc_per_node=2", "cluster.device=cpu", "num_envs=8")
ENDED = Result("completed", "max_iterations", seconds=25.0)
LOST = Result("failed", "node_lost", "lost contact with gpu02", host="gpu02", seconds=25.0)


def valid(bundle: Any) -> Any:
    jsonschema.Draft202012Validator(SCHEMA).validate(bundle)
    return bundle


def bundle_at(run: Path, result: Result = ENDED) -> Any:
    return valid(bundle_of(load_run(run), result))


def test_a_trainings_throughput_is_that_of_all_ranks_over_all_of_the_time(tmp_path: Path) -> None:
    bundle = bundle_at(make_benchmark(tmp_path / "run", "training"))
    runtime = bundle["runtime"]
    assert (runtime["iterations_completed"], runtime["steps_per_iteration"]) == (2, 4 * 16 * 24)
    assert runtime["total_fps"]["mean"] == pytest.approx(2 * 4 * 16 * 24 / 10.0)
    assert runtime["total_fps"]["peak"] == pytest.approx(4 * 16 * 24 / 4.0)
    assert runtime["iteration_time_s"]["mean"] == 5.0
    assert (bundle["run"]["num_envs"], bundle["run"]["framework"]) == (64, "rsl_rl")
    assert bundle["learning"]["reward"]["final_raw"] == 400.0
    extra = bundle["extra"]
    assert (extra["world_size"], extra["local_world_size"], extra["num_nodes"]) == (4, 2, 2)
    assert (extra["workload_scope"], extra["measurement_scope"]) == ("global", "rank0_process")
    assert (extra["gpu_measurement_scope"], extra["num_envs_per_rank"]) == ("rank0_node", 16)


def test_stepping_is_rank_0s_alone(tmp_path: Path) -> None:
    bundle = bundle_at(make_benchmark(tmp_path / "run", "runtime"))
    assert bundle["runtime"]["total_fps"]["mean"] == pytest.approx(2 * 16 * 24 / 10.0)
    assert bundle["runtime"]["environment_step_timing"]["environment_step_time_s"]["mean"] == 1.0
    assert (bundle["run"]["num_envs"], bundle["run"]["framework"]) == (16, None)
    assert bundle["extra"]["workload_scope"] == "rank0"
    assert "learning" not in bundle


def test_a_start_is_told_phase_by_phase_from_the_launch_on(tmp_path: Path) -> None:
    bundle = bundle_at(make_benchmark(tmp_path / "run", "startup"))
    phases = {name: phase["total_time_s"] for name, phase in bundle["phases"].items()}
    assert list(phases) == ["app_launch", "python_imports", "process_group", "env_creation", "agent_creation",
                            "first_step"]  # fmt: skip
    assert phases["app_launch"] == pytest.approx(3.0)
    assert bundle["extra"]["ranks"]["startup_s"]["min"] == pytest.approx(7.6)
    assert bundle.keys() == {"run", "versions", "hardware", "phases", "config", "extra", "schema_version"}


def test_the_slowest_rank_is_named_with_its_host_and_every_node_with_its_resources(tmp_path: Path) -> None:
    extra = bundle_at(make_benchmark(tmp_path / "run", "training"))["extra"]
    assert extra["ranks"]["collect_s"] == {
        "min": 1.0, "median": 1.0, "max": 3.0, "slowest_rank": 3, "slowest_host": "gpu02",
    }  # fmt: skip
    assert [(node["host"], node["hardware"]["cpu_count"]) for node in extra["nodes"]] == [("gpu01", 8), ("gpu02", 8)]
    assert [node["resources"]["cpu_util_pct"]["mean"] for node in extra["nodes"]] == pytest.approx([25.0, 50.0])
    assert extra["nodes"][0]["resources"]["gpu_mem_gb"]["peak"] == 2.0
    assert [rank["host"] for rank in extra["per_rank"]] == ["gpu01", "gpu01", "gpu02", "gpu02"]


def test_a_failed_benchmark_says_why_and_what_it_had_measured(tmp_path: Path) -> None:
    bundle = bundle_at(make_benchmark(tmp_path / "run", "training", ranks=0), LOST)
    assert bundle["run"]["status"] == "crashed"
    extra = bundle["extra"]
    assert (extra["cause"], extra["failed_host"], extra["message"]) == (
        "node_lost", "gpu02", "lost contact with gpu02",
    )  # fmt: skip
    assert "lost contact with gpu02" in describe_bundle(bundle)


def test_a_failed_training_still_tells_the_throughput_until_then(tmp_path: Path) -> None:
    run = make_benchmark(tmp_path / "run", "training", ranks=0)
    rows = [{"iteration": number, "time": BEGAN + 70 + number, "env_steps": 640 * number, "collect_time": 0.5,
             "learn_time": 0.25} for number in range(1, 6)]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runtime = bundle_at(run, LOST)["runtime"]
    assert (runtime["iterations_completed"], runtime["steps_per_iteration"]) == (3, 640)
    assert runtime["total_fps"]["mean"] == pytest.approx(640.0)


@pytest.mark.parametrize("workload", ["startup", "runtime", "training"])
@pytest.mark.parametrize("missing", ["attempts/000", "attempts/000/timings.json", "metrics.jsonl", "provenance.json"])
def test_whatever_is_missing_of_the_records_there_is_a_bundle(tmp_path: Path, workload: str, missing: str) -> None:
    run = make_benchmark(tmp_path / "run", workload)
    path = run / missing
    if path.is_dir():
        path.rename(tmp_path / "gone")
    else:
        path.unlink()
    for result in (ENDED, LOST, Result("stopped", "preempted")):
        assert describe_bundle(bundle_at(run, result))


def test_the_parts_of_an_iteration_make_the_whole_and_one_that_cannot_be_timed_is_left_out(tmp_path: Path) -> None:
    run = make_benchmark(tmp_path / "run", "training")
    parts = parts_of(bundle_at(run))
    assert parts == pytest.approx({"stepping": 1.0, "learning": 2.0, "synchronising": 1.5, "other": 0.5})
    ranks = json.loads((run / "attempts/000/timings.json").read_text())["ranks"]
    ranks[0]["measured"]["sync_s"] = None
    write_json(run / "attempts/000/timings.json", {"ranks": ranks})
    assert parts_of(bundle_at(run)) == pytest.approx({"stepping": 1.0, "learning": 3.5, "other": 0.5})


def test_collectives_that_take_longer_than_the_update_were_partly_in_the_stepping(tmp_path: Path) -> None:
    run = make_benchmark(tmp_path / "run", "training")
    ranks = json.loads((run / "attempts/000/timings.json").read_text())["ranks"]
    ranks[0]["measured"]["sync_s"]["mean"] = 4.0
    write_json(run / "attempts/000/timings.json", {"ranks": ranks})
    parts = parts_of(bundle_at(run))
    assert parts == pytest.approx({"stepping": 0.5, "learning": 0.0, "synchronising": 4.0, "other": 0.5})


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=50), st.integers(1, 10**9))
def test_a_rate_lies_between_its_slowest_and_its_fastest_time(seconds: list[float], frames: int) -> None:
    found = rate(frames, seconds)
    assert found is not None and found["mean"] is not None and found["peak"] is not None
    assert frames / max(seconds) * (1 - 1e-9) <= found["mean"] <= found["peak"] * (1 + 1e-9)
    measured = summary(frames, dict.fromkeys(PARTS, seconds))
    assert measured["iterations"] == len(seconds)


@given(st.dictionaries(st.integers(0, 999), st.floats(0, 1e6), min_size=1))
def test_ranks_side_by_side(values: dict[int, float]) -> None:
    found = side_by_side(values, {rank: f"node{rank // 8}" for rank in values})
    assert found is not None
    assert found["min"] <= found["median"] <= found["max"] == values[found["slowest_rank"]]
    assert found["slowest_host"] == f"node{found['slowest_rank'] // 8}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["training", "task.solved.threshold=3"], "cannot end when the task is solved"),
        (["training", "task.record=true"], "cannot record a video"),
        (["runtime", "task.record=true"], "cannot record a video"),
        (["training", "cluster=a100x2", "cluster.nodes=1-2"], "needs a fixed number of nodes"),
        (["startup", "resume=latest"], "starts from nothing"),
        (["training", "max_iterations=2"], "leaves nothing to measure after a warm-up of 2"),
        (["runtime", "bench.steps=0"], "bench.steps=0 is too small"),
        (["training", "library=mjlab", "task=mjlab_cartpole"], "library=mjlab is none of them"),
        ([*ISAACLAB, "task.args=[--video]"], "task.args has --video: what is drawn, the others wait for"),
        ([*ISAACLAB, "task.args={num_envs: 9}"], "task.args has --num_envs: set num_envs"),
        ([*ISAACLAB, "task.args=['--seed=3']"], "task.args has --seed: set seed"),
        (["runtime", *ISAACLAB[1:], "task.args=['agent.seed=3']"], "task.args has agent.seed, and there is no agent"),
        ([*ISAACLAB, "resume=latest"], "starts from nothing"),
        (["training", "-m", "seed=1,2"], "bench is for one run"),
        (["scaling", "cluster=a100x2", "bench.world_sizes=[3]"], "3 ranks do not fill whole nodes of 2"),
        (["sailing"], "there are startup, runtime, training"),
        (["show", "nobody"], "there is no run 'nobody'"),
    ],
)
def test_a_benchmark_that_would_say_nothing_is_refused(launch: Launch, words: list[str], told: str) -> None:
    done = launch("bench", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_dry_run_shows_what_every_rank_would_start(launch: Launch, workdir: Path) -> None:
    assert "launcher.train.stepping" in launch("bench", "runtime", "dry_run=true").stdout
    assert "launcher.train.rl_games" in launch("bench", "training", "library=rl_games", "dry_run=true").stdout
    assert not (workdir / "runs").exists()


ISAACLABS_OWN = {
    "schema_version": "1.4",
    "run": {"framework": "skrl", "config": {"physics_backend": "physx", "rendering_backend": "none", "presets": []}},
    "versions": {"isaaclab": "3.0.0", "torch": "2.11.0", "kit": None, "git_commit": "theirs"},
    "runtime": {"environment_step_timing": {
        "environment_step_time_s": {"mean": 0.5, "std": 0.0, "peak": 0.5}, "environment_step_fps": None,
        "simulation_step_time_s": None, "outside_simulation_step_time_s": None, "environment_step_calls": 9,
        "outside_simulation_step_fraction": None, "simulation_step_calls": None, "measurement_mode": "host_return",
        "warmup_steps": 1}},
    "phases": {"app_launch": {"total_time_s": 9.9, "top_functions": [{"name": "start", "calls": 1}]}},
    "config": {"top_n": 30, "whitelist": None},
    "success_rate": 0.25,
    "extra": {"env_creation.env_reset_s": 0.5, "world_size": 77},
}  # fmt: skip
"""What its benchmark of rank 0 has written, less what ours does not read."""


def made_by_isaaclab(path: Path, workload: str) -> Path:
    run = make_benchmark(path, workload, library="isaaclab")
    plan = json.loads((run / "plan.json").read_text())
    plan["training"]["rl_library"] = "skrl"
    write_json(run / "plan.json", plan)
    ranks = json.loads((run / "attempts/000/timings.json").read_text())["ranks"]
    for rank in ranks:
        rank["phases"] = {"python_imports": 2.0, "task_config": 0.25, "app_launch": 4.0, "first_step": 1.0}
    write_json(run / "attempts/000/timings.json", {"ranks": ranks})
    (run / "attempts/000/isaaclab").mkdir()
    write_json(run / "attempts/000/isaaclab/benchmark_x.json", ISAACLABS_OWN)
    return run


def test_isaac_lab_says_what_only_it_knows_and_every_rank_what_it_took(tmp_path: Path) -> None:
    bundle = bundle_at(made_by_isaaclab(tmp_path / "run", "training"))
    assert (bundle["run"]["framework"], bundle["extra"]["library"]) == ("skrl", "isaaclab")
    assert bundle["run"]["config"]["physics_backend"] == "physx"
    assert (bundle["versions"]["isaaclab"], bundle["versions"]["torch"]) == ("3.0.0", "2.11.0")
    assert bundle["versions"]["git_commit"] != "theirs"
    assert bundle["runtime"]["environment_step_timing"]["environment_step_calls"] == 9
    assert bundle["runtime"]["startup_time_s"]["task_config"] == 0.25
    assert bundle["runtime"]["total_fps"]["mean"] == pytest.approx(2 * 4 * 16 * 24 / 10.0)
    assert bundle["success_rate"] == 0.25
    assert (bundle["extra"]["env_creation.env_reset_s"], bundle["extra"]["world_size"]) == (0.5, 4)
    assert "with skrl of isaaclab: 4 ranks" in describe_bundle(bundle)


def test_a_start_of_isaac_lab_has_its_simulations_launch_besides_the_ranks(tmp_path: Path) -> None:
    bundle = bundle_at(made_by_isaaclab(tmp_path / "run", "startup"))
    assert list(bundle["phases"]) == ["launch", "python_imports", "task_config", "app_launch", "first_step"]
    phases = {name: phase["total_time_s"] for name, phase in bundle["phases"].items()}
    assert (phases["launch"], phases["app_launch"]) == (pytest.approx(3.0), 4.0)
    assert bundle["phases"]["app_launch"]["top_functions"][0]["name"] == "start"
    assert bundle["config"]["top_n"] == 30
    assert (bundle["run"]["framework"], bundle["extra"]["ranks"]["startup_s"]["max"]) == (None, pytest.approx(10.25))


@pytest.mark.parametrize("workload", ["startup", "runtime", "training"])
def test_isaac_lab_may_have_written_nothing(tmp_path: Path, workload: str) -> None:
    run = made_by_isaaclab(tmp_path / "run", workload)
    (run / "attempts/000/isaaclab/benchmark_x.json").write_text("{")
    bundle = bundle_at(run, LOST)
    assert (bundle["run"]["config"]["physics_backend"], bundle["versions"]["isaaclab"]) == (None, None)
    assert describe_bundle(bundle)


def test_versions_are_those_of_isaac_labs_schema_and_the_others_stand_apart(tmp_path: Path) -> None:
    first, second = (bundle_at(make_benchmark(tmp_path / name, "training")) for name in ("first", "second"))
    assert not first["versions"].keys() & first["extra"]["versions"].keys()
    assert {"launcher", "python", "gymnasium"} <= first["extra"]["versions"].keys()
    second["extra"]["versions"]["gymnasium"] = "9.9"
    assert [one["name"] for one in compared(first, second)["differs"]] == ["gymnasium"]


def test_a_run_on_processors_uses_nothing_of_a_gpu(tmp_path: Path) -> None:
    run = make_benchmark(tmp_path / "run", "training")
    for samples in (run / "attempts/000").glob("samples-*.jsonl"):
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        samples.write_text("".join(json.dumps({**line, "gpus": []}) + "\n" for line in lines))
    resources = bundle_at(run)["resources"]
    assert (resources["gpu_util_pct"]["mean"], resources["gpu_mem_gb"]["peak"]) == (0.0, 0.0)


class Stepped:
    """Environments that count."""

    steps = 0

    def step(self, actions: int) -> int:
        self.steps += 1
        return actions


def test_the_first_step_is_timed_once_whoever_else_stands_in_front_of_it() -> None:
    from launcher.train.timings import Timings

    timings, plain, covered = Timings({"workload": "startup", "warmup": 0}), Stepped(), Stepped()
    timings.await_first_step(plain)
    assert (plain.step(3), plain.step(4), plain.steps) == (3, 4, 2)
    assert "step" not in vars(plain)
    timings.await_first_step(covered)
    first = covered.step
    covered.step = lambda actions: first(actions) + 1
    assert (covered.step(3), covered.step(4), covered.steps) == (4, 5, 2)
    idle = Stepped()
    Timings(None).await_first_step(idle)
    assert "step" not in vars(idle)


def test_show_finds_the_bundle_and_writes_one_that_is_missing(launch: Launch, workdir: Path) -> None:
    make_benchmark(workdir / "runs" / "one", "training")
    assert json.loads(launch("bench", "show", "one", "--json", "-o", "out.json").stdout)["run"]["run_id"] == "one"
    assert valid(json.loads((workdir / "out.json").read_text())) == json.loads(
        (workdir / "runs/one/benchmark.json").read_text()
    )
    (workdir / "runs/one/benchmark.json").unlink()
    (workdir / "runs/one/result.json").unlink()
    assert "has not ended" in launch("bench", "show", "one").stderr
    write_json(
        workdir / "runs/one/submission.json", {"scheduler": "local", "pid": 2**22 + 1, "host": os.uname().nodename}
    )
    lost = valid(json.loads(launch("bench", "show", "one", "--json").stdout))
    assert (lost["run"]["status"], lost["extra"]["cause"]) == ("crashed", "killed")
    make_run(workdir / "runs" / "two")
    assert "is no benchmark" in launch("bench", "show", "two").stderr


def test_the_bundle_stands_among_the_records(tmp_path: Path) -> None:
    run = make_benchmark(tmp_path / "run", "training")
    write_bundle(RunDir(run), ENDED)
    assert valid(json.loads((run / "benchmark.json").read_text())) == bundle_at(run)


ASKED = {"task": "ant", "library": "skrl", "cluster": "lab", "num_envs": 64, "world_sizes": [1, 2, 4],
         "scaling": ["weak", "strong"], "repetitions": 2, "runs": 10}  # fmt: skip
ALONE = [ended_bundle(1, 64, 1000), ended_bundle(1, 64, 1100)]


def test_efficiency_is_throughput_against_as_many_times_one_rank(tmp_path: Path) -> None:
    two, four = [ended_bundle(2, 64, 1900), ended_bundle(2, 64, 1890)], [ended_bundle(4, 64, 3000, 2)]
    found = summed_up(ASKED, [*ALONE, *two, *four, ended_bundle(2, 32, 1500)])
    weak, strong = found["points"][:3], found["points"][3:]
    assert [point["fps"] and point["fps"]["median"] for point in weak] == [1050, 1895, 3000]
    assert [point["efficiency"] for point in weak] == pytest.approx([1, 1895 / 2100, 3000 / 4200])
    assert [point["fps"] and point["fps"]["median"] for point in strong] == [1050, 1500, None]
    assert (weak[0]["fps"]["min"], weak[0]["fps"]["max"], weak[2]["num_nodes"]) == (1000, 1100, 2)
    assert found["findings"] == []
    told = describe_scaling(found)
    assert "1,895" in told and "71%" in told
    png, svg = draw(found, tmp_path)
    assert png.stat().st_size > 10_000
    where = "NVIDIA A100-SXM4-80GB · 2 hosts · 2026-11-30"
    assert caption_of(found) == f"{where} · launcher 0.1.0 · torch 2.13.0 · commit 4c86c2300 with changes"
    assert caption_of(found) in svg.read_text()


def test_the_caption_of_a_picture_says_what_is_known_and_no_more() -> None:
    (bare,) = [ended_bundle(1, 64, 1000)]
    bare["run"]["start_time_utc"], bare["versions"]["git_commit"], bare["versions"]["torch"] = None, None, None
    bare["extra"]["nodes"][0]["hardware"] = {"gpu_devices": [], "cpu_name": "AMD EPYC"}
    assert caption_of(summed_up(ASKED, [bare])) == "CPU AMD EPYC · 1 host · launcher 0.1.0"
    assert caption_of(summed_up(ASKED, [])) == ""
    later = ended_bundle(2, 64, 1000)
    later["run"]["start_time_utc"] = "2026-12-01T00:10:00+00:00"
    assert "2026-11-30 to 2026-12-01" in caption_of(summed_up(ASKED, [later, *ALONE]))


def test_more_nodes_that_are_slower_and_synchronising_that_dominates_are_said() -> None:
    slower = [ended_bundle(4, 64, 900, nodes=2, sync=0.6), ended_bundle(4, 64, 950, nodes=2, sync=0.6)]
    found = summed_up({**ASKED, "scaling": ["weak"]}, [*ALONE, ended_bundle(2, 64, 1050), *slower])
    assert found["findings"] == [
        "2 nodes are slower than 1 for this task (weak scaling): 925 against 1,050 frames/s",
        "synchronising dominates with 4 ranks (weak scaling, 64 environments each): 46% of an iteration, more than"
        " stepping or learning",
    ]


def test_what_is_within_the_spread_is_not_called_slower_and_what_failed_is_named() -> None:
    found = summed_up(ASKED, [*ALONE, ended_bundle(2, 64, 1050), ended_bundle(2, 64, 0, status="crashed")])
    assert found["findings"] == []
    assert found["points"][1]["failed"] == [{"run_id": "2-0", "cause": "oom", "message": "full"}]
    assert "oom: full (2-0)" in describe_scaling(found)


def runs_of(*words: str) -> list[list[str]]:
    return scaling_runs(compose([*words, "bench.repetitions=1", "num_envs=64"]).config)


def test_ranks_share_a_node_as_long_as_they_fit_there() -> None:
    assert runs_of("cluster=a100x2", "bench.world_sizes=[1,2,4]", "bench.scaling=[weak]") == [
        ["cluster.nodes=1", "cluster.nproc_per_node=1", "cluster.gpus_per_node=1", "num_envs=64"],
        ["cluster.nodes=1", "cluster.nproc_per_node=2", "cluster.gpus_per_node=2", "num_envs=64"],
        ["cluster.nodes=2", "cluster.nproc_per_node=2", "num_envs=64"],
    ]
    assert [words[1:] for words in runs_of("bench.world_sizes=[4,1,1]")] == [
        ["cluster.nproc_per_node=1", "num_envs=64"], ["cluster.nproc_per_node=4", "num_envs=64"],
        ["cluster.nproc_per_node=4", "num_envs=16"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cluster=a100x2", "bench.world_sizes=[3]"], "3 ranks do not fill whole nodes of 2"),
        (["bench.world_sizes=[1,3]"], "num_envs=64 cannot be shared out evenly over 3 ranks"),
        (["bench.world_sizes=[]"], "numbers of ranks"),
        (["bench.world_sizes=[0]"], "numbers of ranks"),
        (["cluster.scheduler=none", "cluster.hosts=[a,b]"], "it needs Slurm, or this machine"),
    ],
)
def test_numbers_of_ranks_that_cannot_be_had_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        runs_of(*words)


def test_a_difference_beyond_the_noise_is_marked_and_one_within_it_is_not(tmp_path: Path) -> None:
    first = bundle_at(make_benchmark(tmp_path / "first", "training"))
    second = json.loads(json.dumps(first))
    for bundle, fps in ((first, 1000.0), (second, 1200.0)):
        bundle["runtime"]["total_fps"] = {"mean": fps, "std": 50.0, "peak": fps}
        bundle["runtime"]["collection_fps"] = {"mean": 2 * fps, "std": 500.0, "peak": 3 * fps}
    second["versions"]["torch"] = "9.9"
    second["extra"]["world_size"] = 8
    found = compared(first, second)
    assert {one["name"] for one in found["differs"]} == {"torch", "world_size"}
    by_name = {one["name"]: one for one in found["measures"]}
    assert (by_name["throughput"]["change"], by_name["throughput"]["verdict"]) == (pytest.approx(0.2), "faster")
    assert by_name["while stepping"]["verdict"] == ""
    assert by_name["synchronising"]["noise"] is None
    back = {one["name"]: one["verdict"] for one in compared(second, first)["measures"]}
    assert back["throughput"] == "slower"


@pytest.mark.parametrize("workload", ["startup", "runtime", "training"])
def test_a_benchmark_does_not_differ_from_itself(tmp_path: Path, workload: str) -> None:
    for ranks in (4, 0):
        bundle = bundle_at(make_benchmark(tmp_path / f"{workload}-{ranks}", workload, ranks=ranks))
        found = compared(bundle, bundle)
        assert found["differs"] == [] and not any(one["verdict"] or one["change"] for one in found["measures"])
        assert ranks == 0 or found["measures"]


def test_compare_takes_files_and_runs_of_the_same_kind(launch: Launch, workdir: Path) -> None:
    for name, workload in (("one", "training"), ("two", "training"), ("other", "runtime")):
        write_bundle(RunDir(make_benchmark(workdir / "runs" / name, workload)), ENDED)
    done = launch("bench", "compare", "one", "runs/two/benchmark.json")
    assert done.returncode == 0, done.stderr
    assert "throughput" in done.stdout and "+0.0%" in done.stdout
    assert json.loads(launch("bench", "compare", "one", "two", "--json").stdout)["second"] == "two"
    (workdir / "no.json").write_text("[]")
    for words, told in (
        (["one", "other"], "nothing in common"), (["one", "no.json"], "is no bundle"), (["one", "three"], "no run"),
    ):  # fmt: skip
        refused = launch("bench", "compare", *words)
        assert refused.returncode == 2 and told in refused.stderr


@pytest.mark.train
def test_training_is_measured_on_all_ranks(launch: Launch, workdir: Path) -> None:
    done = launch("bench", "training", *TWO_RANKS, "max_iterations=5", "--json")
    assert done.returncode == 0, done.stderr
    bundle = valid(json.loads(done.stdout))
    run, runtime, extra = only_run(workdir), bundle["runtime"], bundle["extra"]
    assert bundle == json.loads((run / "benchmark.json").read_text())
    assert (bundle["run"]["status"], runtime["iterations_completed"]) == ("completed", 3)
    assert runtime["steps_per_iteration"] == 2 * 8 * 48
    assert 0 < runtime["total_fps"]["mean"] < runtime["collection_fps"]["mean"]
    assert extra["ranks"].keys() >= {"iteration_s", "collect_s", "learn_s", "sync_s", "startup_s", "first_step"}
    assert 0 < extra["ranks"]["sync_s"]["min"] < extra["ranks"]["learn_s"]["max"]
    assert [rank["rank"] for rank in extra["per_rank"]] == [0, 1]
    assert bundle["hardware"]["cpu_count"] >= 1
    assert bundle["versions"]["rsl_rl"] and bundle["versions"]["torch"]
    assert result_of(run)["attempts"] == 1


@pytest.mark.train
def test_stepping_is_measured_while_every_rank_steps_for_itself(launch: Launch, workdir: Path) -> None:
    done = launch("bench", "runtime", *TWO_RANKS, "bench.steps=200", "bench.warmup=10", "-o", "bundle.json")
    assert done.returncode == 0, done.stderr
    assert "frames/s of rank 0, while all step" in done.stdout
    bundle = valid(json.loads((workdir / "bundle.json").read_text()))
    assert (bundle["runtime"]["iterations_completed"], bundle["runtime"]["steps_per_iteration"]) == (200, 8)
    assert len(bundle["extra"]["per_rank"]) == 2


@pytest.mark.train
def test_a_start_is_measured_and_a_failed_one_says_why(launch: Launch, workdir: Path) -> None:
    done = launch("bench", "startup", *TWO_RANKS, "--json")
    assert done.returncode == 0, done.stderr
    phases = valid(json.loads(done.stdout))["phases"]
    assert all(phase["total_time_s"] >= 0 for phase in phases.values())
    assert phases["app_launch"]["total_time_s"] > 0.1 and len(phases) == 6
    done = launch("bench", "startup", *TWO_RANKS, "--json", "task.env=Nowhere-v1")
    assert done.returncode == 1
    failed = valid(json.loads(done.stdout))
    assert (failed["run"]["status"], failed["extra"]["cause"], failed["phases"]) == ("crashed", "crash", {})
    assert "Nowhere" in failed["extra"]["message"]


@pytest.mark.slurm
@pytest.mark.train
def test_two_nodes_are_measured_each(sandbox: Sandbox, workdir: Path) -> None:
    words = ("cluster=sandbox", "cluster.nodes=2", "library=rl_games", "num_envs=8", "max_iterations=4")
    done = launch_on(sandbox, workdir, "bench", "training", *words, "--json", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    extra = valid(json.loads(done.stdout))["extra"]
    assert (extra["world_size"], extra["num_nodes"], extra["scheduler"]) == (4, 2, "slurm")
    hosts = [node["host"] for node in extra["nodes"]]
    assert len(set(hosts)) == 2 and [rank["host"] for rank in extra["per_rank"]] == [hosts[0]] * 2 + [hosts[1]] * 2
    assert all(node["hardware"]["hostname"] == node["host"] and node["resources"] for node in extra["nodes"])


@pytest.mark.train
def test_scaling_is_a_sweep_whose_runs_are_summed_up(launch: Launch, workdir: Path) -> None:
    words = ("cluster.device=cpu", "num_envs=8", "max_iterations=4", "bench.world_sizes=[1,2]", "bench.repetitions=1")
    done = launch("bench", "scaling", *words, "bench.scaling=[weak]", "--json", "-o", "out")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [point["num_envs_per_rank"] for point in found["points"]] == [8, 8]
    assert all(point["fps"]["median"] > 0 and len(point["repetitions"]) == 1 for point in found["points"])
    assert {path.name for path in (workdir / "out").iterdir()} == {"scaling.json", "scaling.png", "scaling.svg"}
    assert "2 of 2 runs have ended" in launch("bench", "show", found["sweep_id"]).stdout
