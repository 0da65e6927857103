"""What is silently wrong, found in written samples: pure functions, and the watch that says each thing once."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.compose import compose
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.node import oddities, watching
from launcher.node.oddities import IN_A_ROW, WINDOW, Comparison, Gpu, Load
from launcher.node.watching import Watch
from launcher.plan.build import build
from launcher.records import rundir
from launcher.records.files import append_json_line
from launcher.records.preflight import Finding
from tests.conftest import ROOT
from tests.test_plan import HERE


def ids(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(one.check, one.host) for one in findings]


def window(*uses: float, cpu: float = 0.1, count: int = WINDOW) -> list[Load]:
    """A node whose GPUs have been so busy for a while."""
    return [Load(cpu, tuple(Gpu(index, use) for index, use in enumerate(uses)))] * count


def test_the_table_in_the_documentation_is_what_is_looked_for() -> None:
    text = (ROOT / "docs" / "diagnosis.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    assert rows == [(check.id, check.what, check.fix) for check in oddities.CHECKS]


def test_one_gpu_that_works_while_three_are_idle_is_told_in_one_line() -> None:
    (finding,) = oddities.idle_gpus({"a": window(0.97, 0, 0, 0.01)}, progress=False)
    assert (finding.check, finding.severity, finding.host) == ("gpu-idle", "warning", "a")
    assert "1 of 4 GPUs work, nothing runs on GPU 1 on a, GPU 2 on a, GPU 3 on a" in finding.message
    assert "\n" not in finding.message and finding.message.endswith(oddities.GPU_IDLE.fix)


def test_a_node_that_does_nothing_while_another_one_works_is_told() -> None:
    (finding,) = oddities.idle_gpus({"a": window(0.9, 0.9), "b": window(0, 0)}, progress=False)
    assert "2 of 4 GPUs work, nothing runs on GPU 0 on b, GPU 1 on b" in finding.message


@pytest.mark.parametrize(
    "loads",
    [
        window(0.97, 0.03),  # little, but something
        window(0.97, 0, count=WINDOW - 1),  # not for long enough
        [*window(0.97, 0)[1:], Load(0.1, (Gpu(0, 0.9), Gpu(1, 0.5)))],  # it has just begun
        window(0.1, 0),  # nobody is busy: an evaluation on one rank
        [*window(0.97, 0)[1:], Load(0.1, (Gpu(0, 0.9),))],  # GPU 1 was lost: that is another fault
        window(),
        [],
    ],
)
def test_gpus_that_may_only_be_waiting_are_not_told(loads: list[Load]) -> None:
    assert not list(oddities.idle_gpus({"a": loads}, progress=False))


def test_a_training_that_goes_on_without_any_gpu_is_told() -> None:
    loads = {"a": window(0, 0)}
    assert ids(oddities.idle_gpus(loads, progress=True)) == [("gpu-idle", "a")]
    assert not list(oddities.idle_gpus(loads, progress=False))  # it may still load its data


@pytest.mark.parametrize(
    ("uses", "cpu", "found"),
    [((0.2, 0.25), 0.97, True), ((0.2, 0.25), 0.5, False), ((0.9, 0.8), 0.97, False), ((0.0, 0.0), 0.97, False)],
)
def test_gpus_that_wait_while_all_cpus_are_busy_are_told(uses: tuple[float, ...], cpu: float, found: bool) -> None:
    findings = list(oddities.starved_gpus({"a": window(0.9), "b": window(*uses, cpu=cpu)}))
    assert ids(findings) == ([("gpu-starved", "b")] if found else [])


def on(*ranks_by_gpu: tuple[int, ...]) -> Load:
    return Load(0.1, tuple(Gpu(index, 0.5, ranks) for index, ranks in enumerate(ranks_by_gpu)))


@pytest.mark.parametrize(
    ("loads", "ranks_per_node", "found"),
    [
        ([on((0, 1), ()), on((0, 1), ())], 2, "ranks 0 and 1 compute on the same GPU, number 0"),
        ([on((0,), (1,)), on((0, 1), ())], 2, ""),  # once is a moment
        ([on((0, 1), (1,))] * 2, 2, ""),  # rank 1 has its own, and some memory on another one
        ([on((0, 1), (2, 3))] * 2, 4, ""),  # four ranks were to share two
        ([on((0,), (1,))] * 2, 2, ""),
        ([on((0, 1, 2), (), ())] * 2, 3, "ranks 0 and 1 and 2"),
    ],
)
def test_ranks_on_the_same_gpu_are_named(loads: list[Load], ranks_per_node: int, found: str) -> None:
    said = [one.message for one in oddities.shared_gpus({"a": loads}, ranks_per_node)]
    assert len(said) == bool(found)
    assert all(found in message for message in said)


def test_ranks_that_know_nobody_train_alone() -> None:
    def node(*ranks: tuple[int, bool]) -> list[Load]:
        return [Load(0.1, (), ranks)] * 2

    apart = {"a": node((0, True), (1, False)), "b": node((2, False), (3, False))}  # rank 0 talks to a tracker
    assert ids(oddities.alone(apart, 4)) == [("alone", "a")]
    assert not list(oddities.alone({**apart, "b": node((2, False), (3, True))}, 4))
    assert not list(oddities.alone({"a": apart["a"]}, 4))  # b does not tell
    assert not list(oddities.alone({"a": node((0, False))}, 1))
    assert not list(oddities.alone({host: loads[1:] for host, loads in apart.items()}, 4))  # once is a moment


HOSTS = ("a", "a", "b", "b")
BIG = 4096


def told(worked: tuple[float, ...], seconds: float = 1.0, iteration: int = 10) -> Comparison:
    return Comparison(iteration, seconds, worked, [(BIG, rank) for rank in range(len(worked))])


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ([(BIG, 7)] * 4, "all ranks collect"),
        ([(BIG, 7), (BIG, 8), (BIG, 7), (BIG, 9)], "ranks 0, 2 collect"),
        ([(BIG, 7), (BIG, 8), (BIG, 9), (BIG, 6)], ""),
        ([(16, 7)] * 4, ""),  # equal by chance
        ([(0, 0)] * 4, ""),  # nobody tells
        ([(BIG, 7), (2 * BIG, 7), (3 * BIG, 7), (4 * BIG, 7)], ""),
    ],
)
def test_ranks_with_the_same_data_are_named(data: list[tuple[int, int]], found: str) -> None:
    said = [one.message for one in oddities.same_data(Comparison(1, 1.0, (0.0,) * 4, data), HOSTS)]
    assert len(said) == bool(found)
    assert all(found in message for message in said)


def test_the_straggler_is_named_with_its_host_and_by_how_much() -> None:
    (finding,) = oddities.straggler([told((0.2, 0.2, 0.6, 0.2))] * IN_A_ROW, HOSTS)
    assert (finding.check, finding.host) == ("straggler", "b")
    assert "rank 2 works 3.0 times as long as the others" in finding.message


@pytest.mark.parametrize(
    "history",
    [
        [told((0.2, 0.2, 0.6, 0.2))] * (IN_A_ROW - 1),
        [*[told((0.2, 0.2, 0.6, 0.2))] * (IN_A_ROW - 1), told((0.6, 0.2, 0.2, 0.2))],  # another one each time
        [told((0.2, 0.2, 0.28, 0.2))] * IN_A_ROW,
        [told((0.01, 0.01, 0.03, 0.01))] * IN_A_ROW,  # of a second: nobody loses much
        [told((0.0, 0.0, 0.6, 0.0))] * IN_A_ROW,  # the others do not tell
        [told((0.0,) * 4)] * IN_A_ROW,
    ],
)
def test_nobody_is_called_a_straggler_for_little(history: list[Comparison]) -> None:
    assert not list(oddities.straggler(history, HOSTS))


@given(st.lists(st.floats(0.9, 1.1), min_size=2, max_size=64), st.floats(0.001, 100))
def test_ranks_that_differ_by_noise_hold_up_nobody(noise: list[float], scale: float) -> None:
    history = [told(tuple(scale * one for one in noise), seconds=scale)] * IN_A_ROW
    assert not list(oddities.straggler(history, ["a"] * len(noise)))


def course(use: Any, count: int = 40) -> list[tuple[float, float]]:
    """Memory, with a point each half minute."""
    return [(1e9 + 30.0 * number, use(number)) for number in range(count)]


@pytest.mark.parametrize(
    ("use", "seconds"),
    [
        (lambda n: 600 + 5 * n, 30 * (1000 - 795) / 5),
        (lambda n: 600 + 5 * n + 3 * (n % 3), 30 * (1000 - 795) / 5),  # up and down on its way
        (lambda n: 600, None),
        (lambda n: 900 - n, None),
        (lambda n: 100 + n, None),  # far away
        (lambda n: min(900, 500 + 20 * n), None),  # a buffer that is full by now
        (lambda n: 600 + 100 * (n % 5), None),
    ],
)
def test_memory_that_grows_steadily_is_told_when_it_will_be_full(use: Any, seconds: float | None) -> None:
    found = oddities.full_in(course(use), 1000)
    assert found == (None if seconds is None else pytest.approx(seconds, rel=0.05))


def test_ten_minutes_of_growth_are_waited_for() -> None:
    assert oddities.full_in(course(lambda n: 600 + 5 * n, oddities.FEWEST_POINTS - 1), 1000) is None
    assert oddities.full_in(course(lambda n: 600 + 5 * n, oddities.FEWEST_POINTS), 1000) is not None


def test_memory_that_lasts_until_the_job_ends_is_no_trouble() -> None:
    points = course(lambda n: 600 + 5 * n)  # full in 20 minutes
    (finding,) = oddities.memory_creep("a", points, 1000, left_s=3600)
    assert "memory is 80% full, grows steadily, and would be full in 20 minutes" in finding.message
    assert not list(oddities.memory_creep("a", points, 1000, left_s=600))
    assert not list(oddities.memory_creep("a", course(lambda n: 600 + 0.05 * n), 1000, left_s=float("inf")))  # in days


@given(st.lists(st.floats(0, 1000), max_size=60))
def test_any_course_of_memory_can_be_judged(uses: list[float]) -> None:
    found = oddities.full_in([(float(number), use) for number, use in enumerate(uses)], 1000)
    assert found is None or found >= 0


PLAN = build(
    compose(["task=script", "task.path=x.py", "library=torchrun", "cluster=a100x2", "cluster.nodes=2"]).config, HERE
)


def sample(
    *uses: float, cpu: float | None = 0.1, ranks: Iterable[Mapping[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    """A line of a samples' file."""
    gpus = [{"index": index, "utilisation": use, "ranks": []} for index, use in enumerate(uses)]
    memory = {"memory_used_mb": 100, "memory_limit_mb": 1000}
    return {"time": 1e9, "cpu": cpu, **memory, "ranks": list(ranks), "gpus": gpus, **more}


def training(told: bool = True, ranks: Any = None) -> dict[str, Any]:
    return {"training": {"told": told, "ranks": ranks}}


def rounds(watch: Watch, count: int, first: dict[str, Any], second: dict[str, Any]) -> list[Finding]:
    """Samples of both nodes, node 0's as the last of each period; what was said."""
    found: list[Finding] = []
    for _ in range(count):
        assert not watch.take(1, second)
        found += watch.take(0, first)
    return found


def test_each_thing_is_said_once_and_not_before_it_lasts() -> None:
    watch = Watch(PLAN, {0: "a", 1: "b"})
    first, second = sample(0.9, 0.9, **training()), sample(0.9, 0.0)
    assert not rounds(watch, WINDOW - 1, first, second)
    assert ids(rounds(watch, 3 * WINDOW, first, second)) == [("gpu-idle", "b")]


def test_nothing_is_judged_before_the_training_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(PLAN, {0: "a", 1: "b"})
    assert not rounds(watch, 2 * WINDOW, sample(0.9, 0, **training(told=False)), sample(0.9, 0))
    monkeypatch.setattr(watching, "_PREPARED_S", 0.0)  # a script that tells nothing, after a while
    assert ids(rounds(watch, WINDOW, sample(0.9, 0, **training(told=False)), sample(0.9, 0))) == [("gpu-idle", "a")]


def test_a_node_that_tells_nothing_any_more_is_not_judged() -> None:
    silent = replace(PLAN, budgets=replace(PLAN.budgets, sample_s=0.0))
    watch = Watch(silent, {0: "a", 1: "b"})
    watch._stale_s = -1.0  # whatever was heard is too old
    assert not rounds(watch, 2 * WINDOW, sample(0.9, 0.0, **training()), sample(0.9, 0.0))


def test_what_is_wrong_on_all_nodes_of_many_is_said_of_some() -> None:
    watch = Watch(PLAN, {node: f"n{node}" for node in range(64)})
    found: list[Finding] = []
    for _ in range(2 * WINDOW):
        for node in range(63, -1, -1):
            found += watch.take(node, sample(0.1, cpu=1.0, **(training() if node == 0 else {})))
    assert ids(found) == [("gpu-starved", f"n{node}") for node in range(8)]


def test_spare_nodes_and_lost_gpus_harm_nothing() -> None:
    watch = Watch(PLAN, {0: "a", 1: "b"})
    lost = sample(**training(), gpus=[{"index": 0, "error": "GPU is lost", "ranks": []}])
    assert not watch.take(7, sample(0.0))
    assert not rounds(watch, 2 * WINDOW, lost, sample(gpus=None, cpu=None))


def test_what_cannot_be_judged_is_said_once_and_ends_nothing() -> None:
    watch = Watch(PLAN, {0: "a", 1: "b"})
    assert ids(rounds(watch, 3, {"time": "x", **training()}, sample())) == [("not-checked", "a")]


def test_what_a_script_writes_of_its_progress_may_be_anything(tmp_path: Path) -> None:
    run = rundir.create(tmp_path, "a-run")
    append_json_line(run.metrics, {"iteration": [], "time": "now"})
    assert watching.seen_of(run, run.claim_attempt()) == {"told": False, "ranks": None}


def test_what_the_ranks_told_each_other_counts_once_a_comparison() -> None:
    watch = Watch(PLAN, {0: "a", 1: "b"})

    def compared(iteration: int) -> list[Finding]:
        data = [[BIG, rank] for rank in range(4)]
        ranks = {"iteration": iteration, "seconds": 1.0, "worked": [0.2, 0.2, 0.2, 0.9], "data": data}
        return rounds(watch, 4, sample(**training(ranks=ranks)), sample())

    assert not compared(1) and not compared(2)
    assert ids(compared(3)) == [("straggler", "b")]


def test_a_run_without_samples_can_be_asked_for_and_one_with_negative_ones_not() -> None:
    off = compose(["watch.sample_seconds=0"]).config
    validate(off)
    plan = build(off, HERE)
    assert plan.budgets.sample_s == 0 and "LAUNCHER_WATCH_SECONDS" not in plan.values()
    assert PLAN.values()["LAUNCHER_WATCH_SECONDS"] == "5"
    with pytest.raises(UserError, match="too small"):
        validate(compose(["watch.sample_seconds=-1"]).config)
