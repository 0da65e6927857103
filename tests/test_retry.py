"""What follows an attempt: a pure decision, and what Slurm says of a job that it stops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.retry import AGAIN, BUDGETS, END, LEFT_TO_SLURM, OF_THE_PROGRAM, REQUEUE, Chances, decide
from launcher.plan.plan import Retry
from launcher.records.result import COMPLETED, FAILED, STOPPED, Result
from launcher.slurm.fate import Fate, failed_nodes, parse_fate

IN_SLURM = Chances(here=True, slurm=True)
BACK = Chances(here=False, slurm=True)


def ended(cause: str, iteration: int | None = 30, resumed_at: int = 0, **facts: str) -> Result:
    return Result(FAILED, cause, iteration=iteration, resumed_at=resumed_at, **facts)  # pyright: ignore[reportArgumentType]


def follows(*history: Result, chances: Chances = IN_SLURM, **retry: int | bool | None) -> str:
    return decide(Retry(**retry), history, chances).what  # pyright: ignore[reportArgumentType]


def test_a_crash_is_tried_again_in_the_job_and_a_lost_job_goes_back_to_the_queue() -> None:
    assert follows(ended("crash")) == AGAIN
    assert follows(ended("crash"), in_job=False) == REQUEUE
    assert follows(ended("node_lost"), chances=BACK) == REQUEUE
    assert follows(ended("preempted")) == REQUEUE  # whatever is possible here: somebody else is waiting
    assert follows(ended("time_limit")) == REQUEUE


def test_without_slurm_a_run_is_tried_again_here_or_not_at_all() -> None:
    assert follows(ended("crash"), chances=Chances(here=True)) == AGAIN
    assert follows(ended("node_lost"), chances=Chances()) == END


@pytest.mark.parametrize("cause", ["cancelled", "terminated", "interrupted", "launch"])
def test_what_a_user_wished_or_got_wrong_never_comes_back(cause: str) -> None:
    assert follows(ended(cause)) == END
    assert follows(ended(cause), chances=Chances(slurm=True, requeued=True)) == END


def test_a_completed_run_has_ended() -> None:
    assert decide(Retry(), [Result(COMPLETED, "solved")], IN_SLURM).words() == "ended"


def test_what_slurm_has_requeued_is_left_to_it() -> None:
    requeued = Chances(slurm=True, requeued=True)
    assert follows(ended("requeued"), chances=requeued) == LEFT_TO_SLURM
    assert follows(ended("node_lost"), chances=requeued) == LEFT_TO_SLURM


@given(st.sampled_from(sorted(BUDGETS)), st.integers(0, 5))
def test_a_budget_is_never_exceeded_and_says_so(cause: str, allowed: int) -> None:
    history = [ended(cause, 10 * number + 10, 10 * number) for number in range(allowed + 1)]
    budget = {BUDGETS[cause]: allowed, "without_progress": 99}
    assert follows(*history, chances=BACK, **budget) == END
    assert all(follows(*history[:count], chances=BACK, **budget) == REQUEUE for count in range(1, allowed + 1))
    if allowed:
        assert f"retry.{BUDGETS[cause]}={allowed} is used up" in decide(Retry(**budget), history, BACK).why  # pyright: ignore[reportArgumentType]


@given(st.lists(st.sampled_from(["preempted", "time_limit"]), min_size=1, max_size=40))
def test_what_is_unlimited_goes_on_as_long_as_there_is_progress(causes: list[str]) -> None:
    history = [ended(cause, 10 * number + 10, 10 * number) for number, cause in enumerate(causes)]
    assert follows(*history, chances=BACK) == REQUEUE


@pytest.mark.parametrize("cause", ["preempted", "time_limit", "node_lost"])
def test_attempts_without_progress_end_the_run_whatever_the_budget(cause: str) -> None:
    idle = ended(cause, 30, 30)
    assert follows(ended(cause), idle, idle, chances=BACK) == REQUEUE
    assert follows(ended(cause), idle, idle, idle, chances=BACK) == END
    assert decide(Retry(), [idle] * 3, BACK).why == "no progress in 3 attempts"
    assert follows(*[idle] * 4, chances=BACK, without_progress=5) == REQUEUE


@pytest.mark.parametrize("cause", ["rendezvous", "preflight"])
def test_a_job_that_never_gets_to_its_ranks_is_given_up(cause: str) -> None:
    never = ended(cause, None)
    assert follows(never, never, chances=BACK) == REQUEUE
    assert follows(never, never, never, chances=BACK) == END


@pytest.mark.parametrize("cause", OF_THE_PROGRAM)
def test_a_program_that_fails_at_the_same_iteration_twice_is_not_tried_again(cause: str) -> None:
    assert follows(ended(cause, 35), ended(cause, 35, 20)) == END
    assert follows(ended(cause, 35), ended(cause, 36, 20)) == AGAIN


def test_a_program_that_leaves_before_its_first_iteration_is_not_tried_again_but_one_that_is_killed_is() -> None:
    assert follows(ended("crash", None)) == END
    assert follows(ended("crash", None, signal="SIGKILL")) == AGAIN
    assert follows(ended("crash", None, signal="SIGKILL"), ended("crash", None, signal="SIGKILL")) == END


SHOWN = """\
JobId=7 JobName=x Restarts=9 PreemptTime=2026-01-01T00:00:00 JobState=CANCELLED
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue={requeue} Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   SubmitTime=2026-11-30T09:00:00 EligibleTime=2026-11-30T09:00:00
   PreemptEligibleTime=2026-11-30T09:00:00 PreemptTime={preempted}
   ReqNodeList=(null) ExcNodeList=node[1-2]
   Command=/home/me/ PreemptTime=2026-01-01 x
   Comment=PreemptTime=2026-01-01
"""


def shown(
    state: str = "RUNNING", reason: str = "None", requeue: int = 1, restarts: int = 0, preempted: str = "None"
) -> Fate:
    return parse_fate(SHOWN.format(state=state, reason=reason, requeue=requeue, restarts=restarts, preempted=preempted))


def test_no_name_of_a_job_passes_for_what_slurm_says_of_it() -> None:
    assert shown() == Fate("RUNNING", "None", 0, requeue=True, preempted=False, excluded="node[1-2]")
    assert shown("COMPLETING", requeue=0, restarts=3) == Fate("COMPLETING", "None", 3, False, False, "node[1-2]")
    with pytest.raises(ValueError):
        parse_fate("slurm_load_jobs error: Invalid job id specified\n")


@pytest.mark.parametrize(
    ("fate", "down", "said", "cause"),
    [
        (shown(preempted="2026-11-30T09:01:00"), False, "", "preempted"),
        (shown("COMPLETING", restarts=1), False, "*** STEP 7.0 ON a CANCELLED AT t DUE TO PREEMPTION ***", "preempted"),
        (shown("COMPLETING", restarts=1), False, "*** JOB 7 ON a CANCELLED AT t DUE TO JOB REQUEUE ***", "requeued"),
        (shown("COMPLETING", restarts=1), True, "", "node_lost"),
        (shown("COMPLETING", reason="TimeLimit"), False, "", "time_limit"),
        (shown("COMPLETING"), False, "*** JOB 7 ON a CANCELLED AT t ***", "cancelled"),
        (shown("CANCELLED"), False, "", "cancelled"),
        (shown(), False, "*** STEP 7.0 ON a CANCELLED AT t ***", "terminated"),
        (shown("CONFIGURING"), False, "", "terminated"),  # a task may run before the job does
    ],
)
def test_the_cause_of_a_sigterm_is_what_slurm_did(fate: Fate, down: bool, said: str, cause: str) -> None:
    assert fate.cause(0, down, said) == cause


def test_a_requeue_is_one_that_came_after_this_start() -> None:
    assert shown(restarts=1).requeued_since(0)
    assert not shown(restarts=1).requeued_since(1)


def test_the_nodes_whose_failure_srun_told_of_are_known() -> None:
    said = "x\nsrun: error: Node failure on node[2-3]\nsrun: error: Node failure on b\n Node failure on c\n"
    assert failed_nodes(said) == ["node2", "node3", "b"]


def test_a_stopped_attempt_counts_as_one() -> None:
    assert follows(Result(STOPPED, "preempted", iteration=3), chances=BACK, preempted=0) == END
