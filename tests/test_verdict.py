"""Which failure came first, and what a log's last error is."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.node.conclusion import training_of
from launcher.node.ranks import Failure, Report
from launcher.node.verdict import Findings, judge
from launcher.plan.build import build
from launcher.records import rundir
from launcher.records.files import append_json_line, write_json
from launcher.records.result import Result
from launcher.records.traceback_text import last_error
from tests.test_plan import HERE

PLAN = build(compose(["cluster=a100x2", "cluster.nodes=2"]).config, HERE)


def failure(rank: int, exit_code: int, ended: float, host: str = "a") -> Failure:
    return Failure(rank, host, exit_code, ended, "", f"rank-{rank}.log")


def verdict(findings: Findings, **training: object) -> Result:
    return judge(PLAN, findings, training, attempts=1, seconds=3)


def test_the_first_failure_is_blamed_not_its_victims() -> None:
    victims = Report(0, 1, (failure(0, 1, 10.3), failure(1, -6, 10.2)))
    culprit = Report(1, 1, (failure(3, 7, 10.1, "b"), failure(2, 1, 10.4, "b")))
    result = verdict(Findings({0: victims, 1: culprit}))
    assert (result.outcome, result.cause, result.rank, result.host, result.exit_code) == ("failed", "crash", 3, "b", 7)


def test_a_rank_that_only_lost_its_peer_is_not_named_where_another_failed_by_itself() -> None:
    """It may be gone first: it does not tidy up, as the other does, and the clocks of two nodes differ."""
    victim = replace(failure(0, 1, 10.0), known="peer-lost", message="RuntimeError: Connection closed by peer")
    culprit = Report(1, 1, (failure(3, 1, 12.0, "b"), failure(2, -15, 12.1, "b")))
    assert verdict(Findings({0: Report(0, 1, (victim,)), 1: culprit})).rank == 3
    alone = verdict(Findings({0: Report(0, 1, (victim,)), 1: Report(1, 1, (failure(3, 1, 60.0, "b"),))}))
    assert alone.rank == 0 and "another rank ended first" in alone.hint


def test_what_was_ended_because_of_a_victim_is_no_cause_but_its_own_error_is() -> None:
    victim = replace(failure(0, 1, 10.0), known="peer-lost", message="RuntimeError: Connection closed by peer")
    stopped = [replace(failure(rank, -15, 10.4, "b"), stopped=True) for rank in (2, 3)]
    assert verdict(Findings({0: Report(0, 1, (victim,)), 1: Report(1, 1, tuple(stopped))})).rank == 0
    stopped[1] = replace(stopped[1], message="ValueError: it was this one that had not yet ended")
    assert verdict(Findings({0: Report(0, 1, (victim,)), 1: Report(1, 1, tuple(stopped))})).rank == 3


def test_a_lost_node_is_the_cause_of_those_that_lost_their_peer_on_it() -> None:
    victim = replace(failure(0, 1, 10.0), known="peer-lost")
    assert verdict(Findings({0: Report(0, 1, (victim,))}, lost={"b": 11.0})).cause == "node_lost"


def test_a_known_reason_stands_in_the_verdict_with_what_to_do() -> None:
    starved = replace(failure(1, -9, 1.0), known="oom-killer", message="the kernel killed it")
    result = verdict(Findings({0: Report(0, 1, (starved,))}))
    assert (result.cause, result.known, result.signal) == ("oom", "oom-killer", "SIGKILL")
    assert "cluster.mem_per_gpu" in result.hint and "rank-1.log" in result.hint
    assert len(result.line().splitlines()) == 1


def test_a_signal_is_named_and_is_no_exit_code() -> None:
    result = verdict(Findings({0: Report(0, 1, (failure(1, -9, 1.0),))}))
    assert (result.signal, result.exit_code) == ("SIGKILL", None)
    real_time = verdict(Findings({0: Report(0, 1, (failure(1, -40, 1.0),))}))
    assert "rank 1 on a was killed by signal 40" in real_time.line()


def test_a_lost_node_is_the_cause_only_where_no_rank_failed() -> None:
    assert verdict(Findings({0: Report(0, 0)}, lost={"b": 2.0})).cause == "node_lost"
    assert verdict(Findings({0: Report(0, 1, (failure(0, 3, 1.0),))}, lost={"b": 2.0})).cause == "crash"


def test_missing_nodes_are_named() -> None:
    result = verdict(Findings(missing=["b", "c"]))
    assert (result.cause, result.host) == ("rendezvous", "b")
    assert "b, c" in result.line()


def test_a_request_to_stop_is_the_cause_whatever_the_ranks_did_then() -> None:
    result = verdict(Findings({0: Report(0, 1, (failure(0, -15, 1.0),))}, stopped_by="terminated"), iteration=7)
    assert (result.outcome, result.cause, result.rank, result.iteration) == ("stopped", "terminated", None, 7)


def test_a_request_that_came_when_all_was_done_stopped_nothing() -> None:
    findings = Findings({0: Report(0, 0), 1: Report(1, 0)}, stopped_by="terminated")
    assert verdict(findings, reason="solved").outcome == "completed"
    assert verdict(findings, reason="asked to stop").outcome == "stopped"


def test_ranks_that_drifted_apart_are_a_cause_of_their_own() -> None:
    result = verdict(Findings({0: Report(0, 1, (failure(0, 1, 1.0),))}), ranks_in_sync=False)
    assert result.cause == "ranks_out_of_sync"


def test_torchrun_itself_may_fail() -> None:
    broken, ended = Report(0, 127, message="cannot start python3.99", host="gpu1"), Report(1, -9, host="gpu2")
    for reports in ({0: broken, 1: ended}, {1: ended, 0: broken}):
        result = verdict(Findings(reports))
        assert (result.cause, result.exit_code, result.host) == ("launch", 127, "gpu1")
        assert "gpu1: cannot start python3.99" in result.line()


def test_a_training_that_ended_says_why_and_a_script_is_just_finished() -> None:
    done = Findings({0: Report(0, 0), 1: Report(1, 0)})
    assert verdict(done, reason="solved").cause == "solved"
    assert verdict(done).cause == "finished"


def test_a_report_crosses_the_wire_unchanged() -> None:
    report = Report(1, 1, (failure(3, 7, 1.5),), "words")
    assert Report.from_message(report.to_message()) == report


TRACEBACK = """\
iteration 3
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    f(
    ~~^
ValueError: boom: bad shape
more output
"""


def test_the_error_is_the_line_that_ends_the_last_traceback() -> None:
    assert last_error(TRACEBACK) == "ValueError: boom: bad shape"
    assert (
        last_error("Traceback (most recent call last):\n  x\nKeyError: 1\n" + TRACEBACK)
        == "ValueError: boom: bad shape"
    )
    assert (
        last_error(TRACEBACK.replace("ValueError: boom: bad shape", "torch.OutOfMemoryError"))
        == "torch.OutOfMemoryError"
    )


def test_torchs_copy_with_the_rank_before_each_line_is_read_too() -> None:
    prefixed = "".join(f"[rank3]: {line}\n" for line in TRACEBACK.splitlines()[1:6])
    assert last_error(prefixed) == "ValueError: boom: bad shape"


def test_a_log_without_a_traceback_has_no_error() -> None:
    assert last_error("all well\n") == ""
    assert (
        last_error('  File "t.py", line 1\n    f(:\n      ^\nSyntaxError: invalid syntax\n')
        == "SyntaxError: invalid syntax"
    )
    assert last_error("Traceback (most recent call last):\n  File") == ""


@pytest.mark.parametrize("told", [True, False])
def test_the_metrics_of_a_verdict_are_those_of_its_iteration(tmp_path: Path, told: bool) -> None:
    run = rundir.create(tmp_path, "a-run", tmp_path)
    attempt = run.claim_attempt()
    write_json(attempt.rendezvous, {"hosts": ["a"], "time": 100.0, "resumed_at": 0})
    if told:  # at its last checkpoint, and no more: it was killed, or its author has forgotten rank.report()
        write_json(attempt.training, {"iteration": 11, "ranks_in_sync": True, "metrics": {"loss": 0.18}})
    append_json_line(run.metrics, {"iteration": 20, "time": 120.0, "loss": 0.05, "note": "text"})
    training = training_of(run, attempt)
    assert (training["iteration"], training["metrics"]) == (20, {"loss": 0.05})
    assert training.get("ranks_in_sync") is (True if told else None)
