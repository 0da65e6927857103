"""``nccl diagnose``: what is tried, what follows from it, and the proof. Here the cluster is a function."""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.compose import catalogue, compose
from launcher.config.schema import Workaround
from launcher.config.validate import validate
from launcher.diagnose import report
from launcher.diagnose.remedies import fit_together, in_order, remedies
from launcher.diagnose.search import Diagnosis, Names, Stopped, Trial, diagnose, smallest_cure
from launcher.diagnose.shapes import Shape, describe, hosts_of, shapes
from launcher.diagnose.trials import follow
from launcher.records.preflight import NodeReport, all_reduce_line, compare
from launcher.records.probe import PHASES, RankSeen, Request, bandwidth, judge
from launcher.records.shared_output import in_pieces
from launcher.train.probe import bandwidths
from tests.conftest import Launch

ENTRIES = catalogue().entries()
CANDIDATES = tuple("abcdef")


def fits(names: Names) -> bool:
    return True


# What is tried


@pytest.mark.parametrize(
    ("nodes", "ranks", "expected"),
    [
        (1, 1, [(1,)]),
        (1, 4, [(1,), (2,), (3,), (4,)]),
        (3, 1, [(1,), (1, 1), (1, 1, 1)]),
        (2, 2, [(1,), (2,), (0, 2), (1, 1), (2, 1), (2, 2)]),
        (3, 2, [(1,), (2,), (0, 2), (0, 0, 2), (1, 1), (1, 1, 1), (2, 1), (2, 2), (2, 2, 2)]),
    ],
)
def test_groups_grow_within_a_node_and_then_across_nodes(nodes: int, ranks: int, expected: list[Shape]) -> None:
    assert shapes(nodes, ranks) == expected


@given(st.integers(1, 40), st.integers(1, 8))
def test_every_node_and_the_whole_cluster_are_tried_and_nothing_twice(nodes: int, ranks: int) -> None:
    found = shapes(nodes, ranks)
    assert len(found) == len(set(found)) and all(len(shape) <= nodes and max(shape) <= ranks for shape in found)
    assert (ranks,) * nodes in found
    if ranks > 1:
        assert {(0,) * node + (ranks,) for node in range(nodes)} <= {*found}
    assert len(found) < 3 * ranks + nodes + 25  # a thousand nodes are no thousand tests across


def test_ranks_are_counted_through_node_by_node() -> None:
    assert hosts_of((2, 0, 1), ["a", "b", "c"]) == {"a": [0, 1], "c": [2]}
    assert describe((2, 0, 1), ["a", "b", "c"]) == "3 ranks on a (2), c"
    assert describe((0, 1), ["a", "b"]) == "1 rank on b"


# The smallest cure


def cured_by(*cures: Iterable[str]) -> Callable[[Names], bool]:
    """A cluster that works with any of these sets, whatever else is set."""
    return lambda names: any({*cure} <= {*names} for cure in cures)


@given(
    st.lists(st.sets(st.sampled_from(CANDIDATES), min_size=1, max_size=4), min_size=1, max_size=3),
    st.permutations(CANDIDATES),
)
def test_the_cure_is_the_smallest_whatever_the_order(cures: list[set[str]], order: Sequence[str]) -> None:
    works = cured_by(*cures)
    found = smallest_cure(order, works, fits)
    assert works(found)
    assert not any(works(tuple(name for name in found if name != one)) for one in found)  # none of it is too much
    smallest = min(map(len, cures))
    assert len(found) == smallest or smallest > 2  # of singles and pairs exactly the smallest


@given(st.sets(st.sampled_from(CANDIDATES), min_size=1, max_size=2), st.permutations(CANDIDATES))
def test_a_single_or_a_pair_is_found_exactly_even_if_everything_together_does_not_work(
    cure: set[str], order: Sequence[str]
) -> None:
    assert {*smallest_cure(order, lambda names: {*names} == cure, fits)} == cure


@given(st.permutations(CANDIDATES))
def test_settings_that_contradict_each_other_are_never_tried_together(order: Sequence[str]) -> None:
    def fit(names: Names) -> bool:
        return not {"a", "b"} <= {*names}

    def works(names: Names) -> bool:
        assert fit(names)
        return {"b", "c"} <= {*names}

    assert {*smallest_cure(order, works, fit)} == {"b", "c"}


def test_where_nothing_helps_it_says_so_after_trying_each_and_each_pair() -> None:
    tried: list[Names] = []

    def works(names: Names) -> bool:
        tried.append(names)
        return False

    assert smallest_cure(CANDIDATES, works, fits) == ()
    assert set(itertools.combinations(CANDIDATES, 2)) <= {*tried} and len(tried) == len(set(tried))


# The whole search


def seen(rank: int, outcome: str = "ok", phase: str = "done", **rest: Any) -> RankSeen:
    return RankSeen(rank, f"gpu{rank:02}", phase, outcome, **rest)


class Cluster:
    """A cluster whose groups of ranks work or hang, with some bandwidth."""

    def __init__(self, hangs: Callable[[Shape, Names], bool], busbw: Callable[[Names], float] = lambda names: 10.0):
        self.hangs, self.busbw = hangs, busbw
        self.tried: list[tuple[Shape, Names]] = []

    def __call__(self, shape: Shape, names: Names, why: str = "") -> Trial:
        self.tried.append((shape, names))
        hangs = self.hangs(shape, names)
        facts = {"sizes": [{"bytes": 8, "busbw": self.busbw(names)}]}
        ranks = tuple(
            seen(rank, "hung", "all_reduce") if hangs else seen(rank, facts=facts) for rank in range(sum(shape))
        )
        return Trial(shape, names, judge(ranks), 1.0, ranks, why)

    def diagnosed(self, nodes: int = 1, ranks: int = 4, candidates: Sequence[str] = CANDIDATES) -> Diagnosis:
        return diagnose(shapes(nodes, ranks), lambda trial: candidates, fits, self)


def test_a_healthy_cluster_is_tried_once_at_each_size() -> None:
    cluster = Cluster(lambda shape, names: False)
    found = cluster.diagnosed()
    assert found.healthy and [shape for shape, _ in cluster.tried] == shapes(1, 4)


def test_a_cure_is_proven_both_ways_priced_and_kept() -> None:
    cluster = Cluster(lambda shape, names: sum(shape) >= 3 and "c" not in names, lambda names: 4.0 if names else 10.0)
    found = cluster.diagnosed()
    (trouble,) = found.troubles
    assert (trouble.first.shape, trouble.cure, trouble.proven, found.cures) == ((3,), ("c",), True, ("c",))
    assert trouble.returned is not None and not trouble.returned.works and trouble.returned.names == ()
    assert trouble.again is not None and trouble.again.works and trouble.again.names == ("c",)
    assert trouble.cost is not None and (trouble.cost.shape, trouble.cost.ratio) == ((2,), 0.4)
    assert cluster.tried.count(((3,), ())) == 2 and cluster.tried.count(((3,), ("c",))) == 2
    assert ((4,), ("c",)) in cluster.tried and ((4,), ()) not in cluster.tried  # what follows has the cure


def test_the_cost_is_measured_at_a_larger_size_where_the_smaller_ones_do_not_work() -> None:
    cluster = Cluster(lambda shape, names: sum(shape) == 2 and "b" not in names, lambda names: 5.0 if names else 10.0)
    (trouble,) = cluster.diagnosed().troubles
    assert trouble.cost is not None and (trouble.cost.shape, trouble.cost.ratio) == ((4,), 0.5)


def test_a_cost_that_cannot_be_measured_is_not_known() -> None:
    cluster = Cluster(lambda shape, names: sum(shape) > 1 and "b" not in names)
    (trouble,) = cluster.diagnosed().troubles
    assert trouble.proven and trouble.cost is None


def test_two_troubles_have_two_cures_the_second_on_top_of_the_first() -> None:
    cluster = Cluster(
        lambda shape, names: (sum(shape) >= 2 and "a" not in names) or (len(shape) > 1 and "d" not in names)
    )
    found = cluster.diagnosed(nodes=2, ranks=2)
    assert [trouble.cure for trouble in found.troubles] == [("a",), ("d",)] and found.cures == ("a", "d")
    assert found.troubles[1].returned is not None and found.troubles[1].returned.names == ("a",)


def test_trouble_that_comes_and_goes_is_blamed_on_no_setting() -> None:
    once = iter([True])
    cluster = Cluster(lambda shape, names: sum(shape) == 3 and next(once, False))
    found = cluster.diagnosed()
    (trouble,) = found.troubles
    assert trouble.comes_and_goes and not trouble.proven and found.cures == () and not found.healthy


def test_a_search_in_vain_is_not_repeated_for_the_same_kind_of_group() -> None:
    cluster = Cluster(lambda shape, names: sum(shape) > 1)
    found = cluster.diagnosed(nodes=2, ranks=3)
    searched = [trouble.first.shape for trouble in found.troubles if trouble.searched]
    assert searched == [(2,), (1, 1)] and len(found.troubles) == len(shapes(2, 3)) - 1


def test_a_rank_that_fails_alone_is_no_matter_of_talking() -> None:
    cluster = Cluster(lambda shape, names: True)
    found = cluster.diagnosed()
    assert cluster.tried == [((1,), ())] and len(found.troubles) == 1 and not found.troubles[0].searched


def test_what_was_seen_before_the_time_was_up_is_kept() -> None:
    cluster = Cluster(lambda shape, names: sum(shape) == 3)

    def run(shape: Shape, names: Names, why: str) -> Trial:
        if len(cluster.tried) == 5:
            raise Stopped("no time")
        return cluster(shape, names, why)

    found = diagnose(shapes(1, 4), lambda trial: CANDIDATES, fits, run)
    assert (found.unfinished, len(found.trials), found.healthy) == ("no time", 5, False)
    assert [trouble.first.shape for trouble in found.troubles] == [(3,)]


# What ranks say, and what it means


def ranks(*them: RankSeen) -> list[RankSeen]:
    return list(them)


ONE_BEHIND = ranks(seen(0, "hung", "rendezvous"), seen(1, "hung", "rendezvous"), seen(2, "hung", "torch"))
WAITING = {"facts": {"device": "cuda", "place": "probe.py:9 in item"}}


@pytest.mark.parametrize(
    ("them", "outcome", "culprits", "words"),
    [
        (ranks(seen(0), seen(1)), "ok", (), "2 ranks added up rightly"),
        (ranks(seen(0, "hung", "all_reduce"), seen(1, "hung", "all_reduce")), "hung", (), "all of them are waiting in"),
        (ONE_BEHIND, "hung", (2,), "rank 2 (gpu02) never got beyond importing torch; ranks 0 (gpu00), 1 (gpu01) are"),
        (
            ranks(seen(0, "hung", "all_reduce", **WAITING), seen(1, "hung", "all_reduce", **WAITING),
                  seen(2, "hung", "all_reduce", facts={"device": "cuda", "place": "mine.py:4 in f"})),
            "hung", (2,), "rank 2 (gpu02) is at mine.py:4 in f, ranks 0 (gpu00), 1 (gpu01) are at probe.py:9 in item",
        ),
        (
            ranks(seen(0, "hung", "rendezvous", facts={"device": "cuda"}),
                  seen(1, "hung", "rendezvous", facts={"device": "cpu"})),
            "hung", (1,), "rank 1 (gpu01) is on a cpu",
        ),
        (
            ranks(seen(0, "failed", "all_reduce", error="reset by peer", ended=9.0),
                  seen(1, "failed", "all_reduce", error="killed by SIGSEGV", ended=8.9)),
            "failed", (1,), "rank 1 (gpu01) failed while waiting in its first all_reduce: killed by SIGSEGV",
        ),
        (
            ranks(seen(0, "failed", "rendezvous", error="lost", ended=7.0),
                  seen(1, "failed", "device", error="no GPU", ended=8.0)),
            "failed", (1,), "rank 1 (gpu01) failed while setting up its device: no GPU",
        ),
        (ranks(seen(0, "wrong"), seen(1)), "wrong", (0,), "the sums of rank 0 (gpu00) are wrong"),
        (ranks(seen(0, "wrong"), seen(1, "wrong")), "wrong", (), "the sums of ranks"),
    ],
)  # fmt: skip
def test_the_rank_to_blame_is_named(them: list[RankSeen], outcome: str, culprits: tuple[int, ...], words: str) -> None:
    for order in itertools.permutations(them):
        verdict = judge(order)
        assert (verdict.outcome, verdict.culprits) == (outcome, culprits)
        assert words in verdict.line and "\n" not in verdict.line


OUTCOMES = st.sampled_from(["ok", "wrong", "failed", "hung", ""])


@given(st.lists(st.tuples(OUTCOMES, st.sampled_from(PHASES)), min_size=1, max_size=6))
def test_any_outcome_can_be_judged_and_is_well_only_if_all_are(them: list[tuple[str, str]]) -> None:
    verdict = judge([seen(rank, outcome, phase) for rank, (outcome, phase) in enumerate(them)])
    assert (verdict.outcome == "ok") == all(outcome == "ok" for outcome, _ in them)
    assert {*verdict.culprits} <= {*range(len(them))}


def test_bandwidths_are_those_of_nccl_tests_and_the_slowest_rank_counts() -> None:
    assert bandwidths(4_000_000_000, 2.0, 4) == {"algbw": 2.0, "busbw": 3.0}  # 2 (n - 1) / n = 1.5
    fast, slow = ({"sizes": [{"busbw": 99.0}, {"busbw": speed}]} for speed in (7.0, 3.0))
    assert bandwidth([seen(0, facts=fast), seen(1, facts=slow)]) == 3.0
    assert bandwidth([seen(0, facts=fast), seen(1)]) is None


def node(host: str, *them: RankSeen) -> NodeReport:
    return NodeReport(host, {"all_reduce": {"ranks": [one.to_message() for one in them]}})


def test_the_preflight_names_the_node_whose_rank_is_behind_and_no_node_where_all_wait() -> None:
    (finding,) = compare([node("gpu00", ONE_BEHIND[0]), node("gpu01", ONE_BEHIND[1]), node("gpu02", ONE_BEHIND[2])])
    assert (finding.check, finding.severity, finding.host) == ("all-reduce", "error", "gpu02")
    (finding,) = compare([node(f"gpu0{rank}", seen(rank, "hung", "all_reduce")) for rank in range(2)])
    assert finding.check == "interconnect" and "nccl diagnose" in finding.message
    (finding,) = compare([node(f"gpu0{rank}", seen(rank, "hung", "torch")) for rank in range(2)])
    assert finding.check == "torch" and "watch.probe_seconds" in finding.message


def test_a_rank_that_failed_by_itself_is_its_nodes_to_tell() -> None:
    assert compare([node("gpu00", seen(0, "failed", "device")), node("gpu01", seen(1, "hung", "rendezvous"))]) == []


def test_the_preflight_tells_the_bandwidth_where_all_is_well() -> None:
    facts = {"backend": "nccl", "sizes": [{"busbw": 371.5}]}
    well = [node("gpu00", seen(0, facts=facts)), node("gpu01", seen(1, facts=facts))]
    assert compare(well) == []
    assert all_reduce_line(well) == "all-reduce over 2 ranks on 2 nodes through nccl: 372 GB/s of bus bandwidth"
    assert all_reduce_line([NodeReport("gpu00")]) == ""


# What is offered against a failure


def links(host: str, *interfaces: str, adapters: Sequence[str] = (), down: Sequence[str] = ()) -> NodeReport:
    states = {name: {"state": "down" if name in down else "up", "mbit_s": 25000, "mtu": 9000} for name in interfaces}
    return NodeReport(
        host, {"interfaces": {"interfaces": ["lo", *interfaces], "adapters": list(adapters), "links": states}}
    )


NODES = [
    links("a", "eth0", "ib0", "eth9", "docker0", adapters=["mlx5_0", "mlx5_1"], down=["eth9"]),
    links("b", "eth0", "ib0", "eth9", "eth5", adapters=["mlx5_0", "mlx5_1"]),
]


def test_the_whole_catalogue_is_offered_but_what_is_in_force_and_what_only_logs() -> None:
    offered = remedies(ENTRIES, {"ib_off": ENTRIES["ib_off"]}, [])
    single = {name for name, entry in ENTRIES.items() if not entry.bundle}
    assert {*offered} == single - {"ib_off", "debug_info", "socket_interface", "ib_hca"}


def test_interfaces_and_adapters_that_all_nodes_have_are_offered_by_name() -> None:
    offered = remedies(ENTRIES, {}, NODES)
    by_value = {name: remedy.entry.env for name, remedy in offered.items() if "=" in name}
    assert by_value == {
        "socket_interface=eth0": {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"},
        "socket_interface=ib0": {"NCCL_SOCKET_IFNAME": "=ib0", "GLOO_SOCKET_IFNAME": "ib0"},
        "ib_hca=mlx5_0": {"NCCL_IB_HCA": "=mlx5_0"},
        "ib_hca=mlx5_1": {"NCCL_IB_HCA": "=mlx5_1"},
    }
    assert not any("=" in name for name in remedies(ENTRIES, {}, [links("a", "eth0"), links("b", "eth0")]))


def test_what_fits_the_ranks_words_is_tried_first() -> None:
    offered = remedies(ENTRIES, {}, NODES)
    text = "gpu00:12:12 NCCL WARN NET/IB : Got completion from peer 7.6.13.83<3> with status=12 opcode=1 vendor err 129"
    failed = ranks(seen(0, "failed", "all_reduce", text=text), seen(1, "failed", "all_reduce", error="reset"))
    order = in_order(offered, Trial((1, 1), (), judge(failed), ranks=tuple(failed)))
    assert order[0] == "ib_off" and sorted(order) == sorted(offered)
    hung = ranks(seen(0, "hung", "all_reduce"), seen(1, "hung", "all_reduce"))
    assert in_order(offered, Trial((2,), (), judge(hung), ranks=tuple(hung)))[0] == "p2p_off"


def test_entries_that_contradict_each_other_or_the_profile_do_not_fit() -> None:
    fit = fit_together(remedies(ENTRIES, {}, NODES), {"mine": Workaround(env={"NCCL_ALGO": "Tree"})})
    assert fit(("p2p_off", "shm_off"))
    assert not fit(("p2p_off", "p2p_level_loc"))
    assert not fit(("socket_interface=eth0", "socket_interface=ib0"))
    assert not fit(("algo_ring",))


# The report


def findings(cluster: Cluster, candidates: Sequence[str], in_force: Names = ()) -> report.Findings:
    found = cluster.diagnosed(nodes=3, ranks=1, candidates=candidates)
    offered = remedies(ENTRIES, {}, NODES)
    return report.Findings("lab", "today", "nccl", ("a", "b", "c"), NODES, in_force, offered, found)


def sick(*cure: str) -> Cluster:
    return Cluster(lambda shape, names: sum(shape) > 2 and not {*cure} <= {*names}, lambda names: 4.0 if names else 8.0)


def test_the_profiles_lines_are_yaml_that_puts_the_cures_in_force_each_with_its_reason(tmp_path: Path) -> None:
    cure = ("ib_off", "socket_interface=ib0")
    found = findings(sick(*cure), [*cure, "p2p_off"], ("shm_off",))
    lines = report.profile_lines(found)
    assert yaml.safe_load(lines) == {"network_interface": "ib0", "nccl": ["shm_off", "ib_off"]}
    comments = " ".join(line.strip().removeprefix("# ") for line in lines.splitlines() if line.strip().startswith("#"))
    for words in ("3 ranks on a, b, c", "without it failed again", "0.50 of the bandwidth", ENTRIES["ib_off"].cost):
        assert words in comments
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "lab.yaml").write_text(f"name: lab\nscheduler: slurm\n{lines}")
    config = compose(["cluster=lab"], [str(tmp_path)]).config
    validate(config)
    assert [*config.nccl] == ["shm_off", "ib_off", "socket_interface"]
    assert config.nccl["socket_interface"].env["NCCL_SOCKET_IFNAME"] == "=ib0"


def test_nothing_is_written_into_the_profile_that_is_not_proven() -> None:
    lines = report.profile_lines(findings(sick("nothing that is offered"), ["ib_off", "shm_off"]))
    assert yaml.safe_load(lines) is None and "not all is well" in lines
    assert "not all is well" not in report.profile_lines(findings(Cluster(lambda shape, names: False), ["ib_off"]))


def test_the_text_says_what_hung_what_cures_it_what_it_costs_and_all_that_was_tried() -> None:
    found = findings(sick("ib_off"), ["p2p_off", "ib_off"])
    text = report.as_text(found)
    assert "cured by ib_off (NCCL_IB_DISABLE=1); without it fails again (hung), with it works again" in text
    assert "its cost: 0.50 of the bandwidth, 4 GB/s instead of 8 GB/s with 2 ranks on a, b" in text
    assert text.count("3 ranks on a, b, c with p2p_off (as a cure): HUNG") == 1
    assert max(map(len, text.splitlines())) < 160
    said = report.as_json(found)
    assert (said["healthy"], said["cures"]) == (False, ["ib_off"])
    (trouble,) = said["troubles"]
    assert (trouble["world_size"], trouble["env"], trouble["proven"]) == (3, {"NCCL_IB_DISABLE": "1"}, True)
    assert len(said["trials"]) == len(found.diagnosis.trials) and said["nodes"][0]["host"] == "a"


def test_the_topology_is_a_matrix_as_nvidia_smi_prints_it_and_the_ways_out() -> None:
    gpus = [{"index": 0, "name": "H100"}, {"index": 1, "name": "H100"}]
    port = {"layer": "InfiniBand", "state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)", "numa": "0"}
    facts = {
        **links("a", "ib0").facts,
        "gpus": {"state": "ok", "gpus": gpus, "paths": [["-", "NV18"], ["NV18", "-"]]},
    }
    facts["interfaces"] = {**facts["interfaces"], "ports": {"mlx5_0:1": port}}
    found = Diagnosis()
    text = report.as_text(report.Findings("lab", "today", "nccl", ("a",), [NodeReport("a", facts)], (), {}, found))
    lines = [line.split() for line in text.splitlines()]
    assert ["GPU0", "X", "NV18"] in lines and ["GPU1", "NV18", "X"] in lines
    assert "ib0: up, 25000 Mbit/s, packets of 9000 bytes" in text
    assert "mlx5_0:1: InfiniBand, ACTIVE, 400 Gb/sec (4X NDR), NUMA node 0" in text


# Following a test


def followed(program: str, deadline_s: float = 0.3) -> tuple[list[RankSeen], float]:
    process = subprocess.Popen(
        [sys.executable, "-Sc", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    request = Request("", {"a": [0], "b": [1]}, 0, "gloo", deadline_s)
    began = time.monotonic()
    try:
        return follow(process, request), time.monotonic() - began
    finally:
        process.kill()
        process.communicate()


def printing(*them: RankSeen) -> str:
    lines = [line for count, one in enumerate(them) for line in in_pieces("rank", str(count), one.to_message())]
    return f"print('\\n'.join({['noise of a module', *lines]!r}), flush=True)\n"


def test_the_last_word_of_each_rank_counts() -> None:
    (first, second), _ = followed(printing(seen(0, "", "torch"), seen(1, text="x" * 3000), seen(0)))
    assert (first.outcome, second.outcome, len(second.text)) == ("ok", "ok", 3000)


def test_a_step_that_dies_without_a_word_is_a_failure_with_its_last_words() -> None:
    program = f"{printing(seen(0))}import sys\nsys.exit('srun: error: gpu02: no such node')"
    (first, second), _ = followed(program)
    assert (first.outcome, second.outcome) == ("ok", "failed") and "no such node" in second.error


def test_a_step_that_hangs_is_left_at_the_deadline_and_its_ranks_hang_where_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("launcher.diagnose.trials._START_S", 0.1)
    (first, second), seconds = followed(f"{printing(seen(0, '', 'all_reduce'))}import time\ntime.sleep(60)")
    assert (first.outcome, first.phase, second.outcome, second.phase) == ("hung", "all_reduce", "hung", "python")
    assert seconds < 3


def test_a_failure_on_one_node_does_not_wait_for_the_deadline_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.diagnose.trials._OTHERS_S", 0.1)
    program = (
        f"{printing(seen(0, '', 'all_reduce'), seen(1, 'failed', 'all_reduce', error='no'))}import time\ntime.sleep(60)"
    )
    (first, second), seconds = followed(program, deadline_s=60)
    assert (first.outcome, second.outcome) == ("hung", "failed") and seconds < 3


# The command line


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("cluster",), "'cluster' is no KEY=VALUE"),
        (("--deadline", "0"), "have to be above 0"),
        (("cluster=sandbox5",), "sandbox"),
        (("cluster.hosts=[a,b]", "cluster.scheduler=none"), "this profile has neither"),
        (("cluster.container.runtime=apptainer", "cluster.container.image=x.sif"), "does not start containers yet"),
        (("-o", "/proc/nix"), "-o /proc/nix: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(launch: Launch, words: tuple[str, ...], answer: str) -> None:
    done = launch("nccl", "diagnose", *words)
    assert done.returncode == 2 and answer in done.stderr and len(done.stderr.splitlines()) == 1


def test_help_teaches(launch: Launch) -> None:
    done = launch("nccl", "diagnose", "--help")
    assert done.returncode == 0 and "python -m launcher nccl diagnose cluster=lab cluster.nodes=4" in done.stdout
    assert "diagnose" in launch("nccl", "--help").stdout
