"""``report``: what becomes of records on the page, without a browser."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.main import main
from launcher.records.durations import duration
from launcher.records.files import append_json_line
from launcher.records.result import Result
from launcher.report.page import number, unit_of
from launcher.report.thin import averaged, means, rounded, thinned
from tests.conftest import ROOT
from tests.made_records import BEGAN, make_benchmark, make_run, make_scaling, make_sweep

HOSTILE = """</script><script>hacked()</script>"'><img src=x onerror=hacked()>"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of runs, beside which reports are written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def page_of(name: str) -> str:
    assert main(["report", name, "-o", "page.html"]) == 0
    return Path("page.html").read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def charts_of(page: str, what: str) -> list[dict[str, Any]]:
    return [chart["data"] for chart in data_of(page)["charts"] if chart["what"] == what]


def text_of(page: str) -> str:
    body = page[page.index("<body>") : page.index('<script type="application/json"')]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_page_of_a_run_has_the_numbers_of_its_records(runs: Path) -> None:
    make_run(runs / "a-run")
    page = page_of("a-run")
    text = text_of(page)
    for said in (
        "completed: max iterations · iteration 40 · return 400.0", "job 4711", "4 2 nodes, 2 GPUs each", "highest 400",
        "gpu01: GPU 1 has had nothing to do [gpu-idle]",
        "node lost", "requeued", "the last words of rank 2", "ada on login1", "name: ant",
    ):  # fmt: skip
        assert said in text
    returns = next(one for one in charts_of(page, "curves") if one["series"][0]["name"] == "return_mean")
    assert [point[2] for point in returns["series"][0]["points"]] == [10 * step for step in range(1, 41)]
    assert [(mark["name"], mark["ended"]) for mark in returns["marks"]] == [
        ("attempt 1", "node lost"),
        ("attempt 2", ""),
    ]


def test_the_advice_of_a_failure_stands_on_the_page_though_a_retry_has_mended_it(runs: Path) -> None:
    verdict = make_run(runs / "a-run") / "attempts/000/verdict.json"
    failed = json.loads(verdict.read_text())
    failed |= {"known": "shape", "hint": f"print their shapes · the traceback is in {failed['log']}"}
    verdict.write_text(json.dumps(failed))
    assert "What the failed rank said What to do: tensors do not fit" in text_of(page_of("a-run"))
    (runs / "a-run/result.json").write_text(json.dumps({**failed, "message": "and so did the run"}))
    assert "What to do: tensors do not fit" in text_of(page_of("a-run")).partition("What the failed rank said")[0]


def test_a_loss_that_is_no_number_is_a_gap(runs: Path) -> None:
    make_run(runs / "a-run")
    loss = next(one for one in charts_of(page_of("a-run"), "curves") if one["series"][0]["name"] == "loss_value")
    assert [point[0] for point in loss["series"][0]["points"] if point[2] is None] == [3]


def test_use_of_gpus_and_hosts_is_drawn_per_gpu_and_per_node(runs: Path) -> None:
    make_run(runs / "a-run")
    lines = [[series["name"] for series in one["series"]] for one in charts_of(page_of("a-run"), "curves")]
    assert ["gpu01 GPU 0", "gpu01 GPU 1", "gpu02 GPU 0", "gpu02 GPU 1"] in lines
    assert ["gpu01", "gpu02"] in lines


def test_of_many_nodes_a_map_is_drawn(runs: Path) -> None:
    make_run(runs / "a-run", hosts=[f"gpu{number:03}" for number in range(70)])
    maps = charts_of(page_of("a-run"), "heat")
    assert len(maps) == 6
    assert all(one["rows"][-1] == "gpu063" for one in maps)
    assert {cell[2] for cell in maps[0]["cells"]} == {55}  # per cent: the mean of 50 and 60


def test_the_time_line_has_a_lane_per_node_with_what_happened_there(runs: Path) -> None:
    make_run(runs / "a-run")
    (line,) = charts_of(page_of("a-run"), "timeline")
    assert line["lanes"] == ["run", "gpu01", "gpu02"]
    assert [(bar["lane"], bar["tone"], bar["span"]) for bar in line["bars"]] == [
        (0, "quiet", [0, 60]), (0, "quiet", [85, 120]),
        (1, "bad", [60, 85]), (2, "bad", [60, 85]), (1, "good", [120, 145]), (2, "good", [120, 145]),
    ]  # fmt: skip
    assert ("lost", 2, 84) in [(mark["name"], mark["lane"], mark["at"]) for mark in line["marks"]]


def test_the_time_line_says_what_happened_in_the_words_of_why(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = make_run(runs / "a-run") / "attempts/000/events.jsonl"
    failed = {"rank": 2, "host": "gpu02", "exit_code": -9, "ended": BEGAN + 83, "message": "", "log": "", "known": ""}
    for at, event in [(70, {"event": "stop", "why": "preempted", "grace_s": 30.0}),
                      (84, {"event": "ended", "node": 1, "code": 1, "message": "", "failures": [failed]})]:  # fmt: skip
        append_json_line(events, {"time": BEGAN + at, **event})
    page = page_of("a-run")
    told = {mark["text"] for mark in charts_of(page, "timeline")[0]["marks"]}
    assert main(["why", "a-run"]) == 0
    story = capsys.readouterr().out
    for words in ("the ranks are told to stop (preempted), 30 s to save", "rank 2 on gpu02 was killed by SIGKILL",
                  "gpu02 is gone"):  # fmt: skip
        assert words in told and words in story and words in text_of(page)


@pytest.mark.parametrize("missing", ["metrics.jsonl", "result.json", "config.yaml", "provenance.json", "attempts",
                                     "submission.json"])  # fmt: skip
def test_a_run_with_missing_records_has_a_page(runs: Path, missing: str) -> None:
    run = make_run(runs / "a-run")
    (run / missing).rename(run / "gone")
    assert "a-run" in text_of(page_of("a-run"))


def test_records_that_make_no_sense_are_passed_over(runs: Path) -> None:
    run = make_run(runs / "a-run")
    for record in (
        {"iteration": "x", "time": None, "return_mean": [1]},
        {"event": 3},
        {"event": "lost", "node": 99, "time": "?"},
        {"event": "ended", "time": 1.0, "failures": [{"rank": "?"}]},
        {"event": ["stop"], "time": 1.0},
    ):
        append_json_line(run / "metrics.jsonl", record)
        append_json_line(run / "attempts/000/events.jsonl", record)
        append_json_line(run / "attempts/000/samples-0.jsonl", {**record, "gpus": [None, {"utilisation": "?"}]})
    assert "a-run" in text_of(page_of("a-run"))


def test_the_page_of_a_sweep_has_a_row_per_run_and_says_what_the_objective_depends_on(runs: Path) -> None:
    make_sweep(runs / "a-sweep", 10)
    page = page_of("a-sweep")
    text = text_of(page)
    assert "10 runs: 10 completed" in text
    assert "highest return_mean 1,000 0009 learning_rate=0.01, seed=9" in text
    assert page.count("<tr>") == 11
    (parallel,) = charts_of(page, "parallel")
    assert [(axis["name"], axis["type"]) for axis in parallel["axes"]] == [
        ("learning_rate", "category"), ("seed", "value"), ("return_mean", "value"),
    ]  # fmt: skip
    assert parallel["axes"][0]["categories"] == ["0.0001", "0.001", "0.01", "0.1"]
    assert parallel["rows"][9] == [0.01, 9, 1000]
    (curves,) = charts_of(page, "curves")
    assert len(curves["series"]) == 10


def test_a_sweep_that_has_not_begun_has_a_page(runs: Path) -> None:
    sweep = make_sweep(runs / "a-sweep", 2)
    for run in sweep.glob("a-sweep-*"):
        for gone in ("metrics.jsonl", "result.json", "attempts", "submission.json"):
            (run / gone).rename(run / f"{gone}.gone")
    assert "2 runs" in text_of(page_of("a-sweep"))


def test_the_page_of_a_scaling_benchmark_has_its_sentences_table_and_curves(runs: Path) -> None:
    page = page_of(make_scaling(runs / "how-it-scales").name)
    text = text_of(page)
    for said in (
        "scaling of ant with rsl_rl on a100x2", "10 runs: 10 completed",
        "efficiency, weak scaling 62% 4 ranks against 1",
        "Synchronising dominates with 4 ranks (weak scaling, 64 environments each): 42% of an iteration",
        "Weak scaling: 64 environments a rank", "Strong scaling: 64 environments in all",
        "Measured on NVIDIA A100-SXM4-80GB · 2 hosts · 2026-11-30 · launcher 0.1.0",
        "weak 4 2 64 2,500 2,375 2,625 62", "strong 4 2 16 2,500 2,375 2,625 62",
    ):  # fmt: skip
        assert said in text
    throughput, efficiency = charts_of(page, "scaling")[:2]
    assert throughput["points"] == [[1, 1000, 950, 1050], [2, 1500, 1425, 1575], [4, 2500, 2375, 2625]]
    assert throughput["ideal"] == {"name": "N × one rank", "points": [[1, 1000], [2, 2000], [4, 4000]]}
    assert efficiency["points"][2] == [4, 62.5, 59.375, 65.625]
    parts = {one["name"]: one["values"] for one in charts_of(page, "parts")[0]["series"]}
    assert parts["stepping"] == [0.4, 0.4, 0.4] and parts["synchronising"] == [0, 0.5, 0.5]
    assert not charts_of(page, "parallel")


def test_of_a_scaling_benchmark_what_failed_is_named_and_what_has_not_ended_is_no_obstacle(runs: Path) -> None:
    sweep = make_scaling(runs / "how-it-scales", failed=True)
    assert (
        "how-it-scales-0002: oom full" not in (text := text_of(page_of("how-it-scales")))
        and "4-2375.0: oom full" in text
    )
    assert "weak 4 2 64" in text and "4 ranks against" not in text
    for name in ("benchmark.json", "result.json", "submission.json"):
        for record in sweep.glob(f"*/{name}"):
            record.unlink()
    assert "Nothing has been measured yet." in text_of(page_of("how-it-scales"))


def test_a_benchmarks_page_has_its_throughput_its_parts_and_its_slowest_rank(runs: Path) -> None:
    make_benchmark(runs / "a-run", "training")
    page = page_of("a-run")
    text = text_of(page)
    for said in (
        "frames/s of all ranks 307 single iterations ± 91", "one iteration 5 s ± 1.4 s", "after 2 that do not count",
        "slowest rank 3 on gpu02: stepping 3 s, median 1 s", "stepping 1 1 3 3 gpu02",
    ):  # fmt: skip
        assert said in text
    iteration, start = charts_of(page, "parts")
    assert iteration["labels"] == ["0", "1", "2", "3"]
    assert {one["name"]: one["values"][3] for one in iteration["series"]} == {
        "stepping": 3, "learning": 2, "synchronising": 1.5, "other": 0,
    }  # fmt: skip
    assert [one["name"] for one in start["series"]][:2] == ["app launch", "python imports"]


@pytest.mark.parametrize(
    ("workload", "ranks", "said"),
    [
        ("startup", 4, "start of rank 0 7.6 s from the launch to the first step"),
        ("runtime", 4, "frames/s of rank 0"),
        ("training", 0, "Nothing was measured."),
    ],
)
def test_every_benchmark_has_a_page(runs: Path, workload: str, ranks: int, said: str) -> None:
    run = make_benchmark(runs / "a-run", workload, ranks)
    assert said in text_of(page_of("a-run"))
    (run / "benchmark.json").unlink()
    Result("failed", "killed", "its job was cancelled").write(run / "result.json")
    assert "the numbers are those until then" in text_of(page_of("a-run"))


def test_what_a_person_named_cannot_become_markup(runs: Path) -> None:
    make_run(runs / "a-run", hosts=[HOSTILE, "gpu02"], name=HOSTILE, config=HOSTILE)
    page = page_of("a-run")
    assert "<script>hacked" not in page and "<img" not in page[: page.index('<script type="application/json"')]
    assert page.count("</script>") == 5
    assert charts_of(page, "timeline")[0]["lanes"][1] == HOSTILE


def test_secrets_of_the_configuration_are_not_on_the_page(runs: Path) -> None:
    make_run(runs / "a-run", config="cluster:\n  env:\n    WANDB_API_KEY: 0123abcd\n")
    page = page_of("a-run")
    assert "WANDB_API_KEY: ********" in page and "0123abcd" not in page


def test_nothing_but_the_pages_own_scripts_may_run_or_be_loaded(runs: Path) -> None:
    make_run(runs / "a-run")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page_of("a-run"))
    assert policy is not None
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")


def test_the_page_is_written_where_it_is_wanted(runs: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    make_run(runs / "a-run")
    assert main(["report", "a-run"]) == 0
    said = capsysbinary.readouterr().out
    assert re.fullmatch(rb"a-run\.html: 1\.\d MB; open it in a browser\n", said)
    assert main(["report", "a-run", "-o", "-"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"<!doctype html>")


def test_a_place_that_cannot_be_written_is_the_users_mistake(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(runs / "a-run")
    assert main(["report", "a-run", "-o", "no/such/page.html"]) == 2
    assert "choose another file with -o FILE" in capsys.readouterr().err
    assert main(["report", "b-run"]) == 2
    assert "there is no run 'b-run'" in capsys.readouterr().err


def test_echarts_is_the_file_that_apache_published() -> None:
    content = (ROOT / "launcher/report/assets/echarts/echarts.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
    assert hashlib.sha256(content).hexdigest() in (ROOT / "docs/reports.md").read_text()


VALUES = st.lists(st.floats(-1e6, 1e6), max_size=200)


@given(VALUES, st.integers(4, 50))
def test_thinning_keeps_order_ends_and_extremes(values: list[float], most: int) -> None:
    points = [(float(index), None, value) for index, value in enumerate(values)]
    kept = thinned(points, most)
    order = [int(point[0] or 0) for point in kept]
    assert order == sorted(set(order))
    assert len(kept) <= max(most, 4)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert {min(values), max(values)} <= {point[2] for point in kept}


@given(VALUES, st.integers(1, 20))
def test_means_lie_between_the_extremes(values: list[float], stretches: int) -> None:
    points = [(float(index), None, value) for index, value in enumerate(values)]
    for _, _, mean in averaged(points, stretches):
        assert min(values) <= mean + 1e-6 and mean - 1e-6 <= max(values)
    found = means([(at, value) for at, _, value in points], float(len(values)), stretches)
    assert len(found) == stretches and all(one is not None for one in found) == (len(values) >= stretches)


@given(st.floats(-1e300, 1e300))
def test_rounding_keeps_five_digits(value: float) -> None:
    found = rounded(value)
    assert found is not None and math.isclose(found, value, rel_tol=1e-4, abs_tol=1e-300)


def test_numbers_and_times_as_people_read_them() -> None:
    assert [number(value) for value in (0, 12, 1234567, 0.12345, 1e-5, 3e-4, 1234.5, None, float("nan"))] == [
        "0", "12", "1,234,567", "0.1235", "1e-05", "0.0003", "1,234", "", "nan",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.5, 59, 60, 3661, 200000, None)] == [
        "0.5 s", "59 s", "1 min", "1 h 1 min", "2 d 7 h", "",
    ]  # fmt: skip
    assert [unit_of(seconds)[1] for seconds in (10, 1000, 20000, 1e6)] == ["s", "min", "h", "days"]
