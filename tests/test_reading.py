"""Reading a run from Python: ``from launcher import load_run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import launcher
from launcher.errors import UserError
from launcher.records.columns import Table
from launcher.records.files import spread_json_lines
from launcher.records.overrides import value_of, varying
from tests.made_records import HOSTS, make_run, make_sweep

ROWS = st.lists(st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers()), max_size=6)


@given(ROWS)
def test_a_table_gives_back_what_went_in_with_gaps_where_nothing_was(rows: list[dict[str, Any]]) -> None:
    table = Table(rows)
    assert len(table) == len(rows)
    assert list(table.rows()) == [{name: row.get(name) for name in table.columns} for row in rows]


def test_a_table_is_a_dictionary_of_columns_to_pandas_and_others() -> None:
    assert dict(Table([{"a": 1, "b": 2.5}, {"a": 2}])) == {"a": [1, 2], "b": [2.5, None]}


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="no column 'reward': there are fps, iteration"):
        Table([{"iteration": 1, "fps": 2}])["reward"]


@given(st.integers(0, 400), st.integers(1, 60), st.integers(0, 300))
def test_of_a_long_log_some_lines_are_read_in_order_the_first_and_the_last_among_them(
    tmp_path_factory: pytest.TempPathFactory, lines: int, most: int, width: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "log.jsonl"
    path.write_text("".join(json.dumps({"n": n, "x": "x" * (width * (n % 3))}) + "\n" for n in range(lines)))
    read = [record["n"] for record in spread_json_lines(path, most)]
    assert read == sorted(set(read))
    assert not lines or (read[0], read[-1]) == (0, lines - 1)
    assert len(read) <= most + 1 or len(read) == lines


def test_a_log_with_half_a_line_at_its_end_and_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"n":1}\n{"n":2')
    assert list(spread_json_lines(tmp_path / "log", 1)) == [{"n": 1}]
    assert list(spread_json_lines(tmp_path / "none", 1)) == []


def test_a_run_is_read_from_python(tmp_path: Path) -> None:
    make_run(tmp_path / "a-run")
    run = launcher.load_run("a-r", tmp_path)
    assert run.metrics["iteration"] == list(range(1, 41))
    assert run.metrics["attempt"] == [0] * 20 + [1] * 20
    assert run.result is not None and run.result.cause == "max_iterations"
    assert [one.verdict.cause for one in run.attempts if one.verdict] == ["node_lost", "max_iterations"]
    assert [one.hosts for one in run.attempts] == [HOSTS, HOSTS]
    assert set(run.samples["host"]) == set(HOSTS)
    assert {"attempt", "lost", "verdict"} <= set(run.events["event"])
    assert run.provenance["user"] == "ada" and run.plan["name"] == "ant-rsl_rl" and "task" in run.config


def test_a_run_of_which_nothing_is_on_record_yet_is_empty(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "plan.json").write_text("{}")
    run = launcher.load_run(tmp_path / "new")
    assert (len(run.metrics), len(run.samples), len(run.events), run.attempts, run.result) == (0, 0, 0, [], None)


def test_the_runs_of_a_sweep_are_read_in_its_order(tmp_path: Path) -> None:
    make_sweep(tmp_path / "a-sweep", 3)
    runs = launcher.load_sweep("a-sweep", tmp_path)
    assert [run.run_id for run in runs] == ["a-sweep-0000", "a-sweep-0001", "a-sweep-0002"]
    assert [run.run_id for run in runs[1:]] == ["a-sweep-0001", "a-sweep-0002"]
    with pytest.raises(UserError, match="there is no sweep 'none'"):
        launcher.load_sweep("none", tmp_path)


def test_a_sweep_is_a_table_of_what_runs_were_given_and_what_came_of_them(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "a-sweep", 3)
    (sweep / "a-sweep-0001" / "result.json").unlink()
    (sweep / "a-sweep-0002" / "result.json").unlink()
    (sweep / "a-sweep-0002" / "metrics.jsonl").unlink()
    read = launcher.load_sweep("a-sweep", tmp_path)
    rows = [
        [row[name] for name in ("run_id", "agent.algorithm.learning_rate", "seed", "outcome", "iteration", read.metric)]
        for row in read.table.rows()
    ]
    assert rows == [
        ["a-sweep-0000", 0.1, 0, "completed", 20, 400.0],
        ["a-sweep-0001", 0.01, 1, None, 20, 200.0],
        ["a-sweep-0002", 0.001, 2, None, None, None],
    ]
    assert "task" not in read.table


@given(st.lists(st.lists(st.tuples(st.sampled_from(["a", "b.c", "+d"]), st.integers(0, 2)), max_size=3), min_size=1))
def test_values_are_those_in_which_runs_differ(runs: list[list[tuple[str, int]]]) -> None:
    words = {str(number): [f"{key}={value}" for key, value in one] for number, one in enumerate(runs)}
    given_to = [{key.lstrip("+"): value for key, value in one} for one in runs]
    found = varying(words)
    for key in {key for one in given_to for key in one}:
        same = len({one.get(key) for one in given_to}) == 1
        assert [one.get(key) for one in found.values()] == (
            [None] * len(runs) if same else [one.get(key) for one in given_to]
        )


def test_a_value_is_a_number_or_the_text_that_was_meant() -> None:
    texts = ("3", "1e-5", "0.5", "abc", "'train it.py'", r"'it\'s'", '"a b"', "nan", "[1,2]", "'1'", "")
    assert list(map(value_of, texts)) == [3, 1e-5, 0.5, "abc", "train it.py", "it's", "a b", "nan", "[1,2]", "1", ""]


def test_a_run_that_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run 'x'"):
        launcher.load_run("x", tmp_path)
