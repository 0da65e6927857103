"""No job is lost when a second accident comes while the first one is being dealt with."""

from __future__ import annotations

import signal
import textwrap
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.conftest import runs_in, script, started
from tests.sandbox import Sandbox
from tests.survival import EVERY, TRAINING, Disturbed, arguments
from tests.test_local import wait_until
from tests.test_slurm import launch_on, slurm_state

pytestmark = [pytest.mark.slurm, pytest.mark.train]

_PARTITIONS = "\n".join(
    f"PartitionName={name} Nodes=ALL DefaultTime=60 PriorityTier=1 PreemptMode={mode} GraceTime=0 State=UP"
    for name, mode in (("now", "REQUEUE"), ("cancel_now", "CANCEL"))
)
_SLOW = TRAINING.replace("time.sleep(0.05)", "time.sleep(0.05 if found or done < every + 5 else 100)")
"""Its first attempt comes to an iteration that takes longer than Slurm waits before SIGKILL."""


@pytest.fixture(scope="module")
def cluster() -> Generator[Sandbox]:
    """Partitions without a grace."""
    yield from started(nodes=4, gpus=1, extra_conf=_PARTITIONS)


@pytest.mark.parametrize(
    ("first", "pause", "second"),
    [
        (("rank", 1), 0.2, ("agent", 0)),
        (("rank", 1), 0.8, ("agent", 0)),  # while the next torchrun waits for the other node's, on a busy machine
        (("rank", 1), 1.2, ("agent", 0)),
        (("torchrun", 0), 0.2, ("agent", 1)),
        (("agent", 1), 0.0, ("agent", 0)),
    ],
)
def test_two_kills_at_once_end_no_run(
    cluster: Sandbox, workdir: Path, first: tuple[str, int], pause: float, second: tuple[str, int]
) -> None:
    run = Disturbed.start(cluster, workdir, "retry.crash=5", endless=2).reach(EVERY + 10)
    hosts = run.hosts()
    run.kill(first[0], hosts[first[1]])
    time.sleep(pause)
    run.kill(second[0], hosts[second[1]])
    run.let_end(workdir)
    run.assert_survived()
    assert set(run.causes()[:-1]) <= {"crash", "killed", "node_lost"}


def test_a_run_that_is_cancelled_while_its_agents_die_does_not_come_back(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir).reach(10)
    cluster.run(["scancel", run.job_id], check=True)
    run.kill("agent", run.hosts()[0])
    wait_until(lambda: slurm_state(cluster, run.job_id) == "CANCELLED", 30)
    wait_until(lambda: not run.processes(), 20)
    assert "Restarts=0" in run.scontrol("show", "job", run.job_id)


@pytest.mark.parametrize("partition", ["now", "cancel_now"])
def test_a_preemption_that_comes_in_a_long_iteration_costs_what_was_not_saved(
    cluster: Sandbox, workdir: Path, partition: str
) -> None:
    run = Disturbed.start(cluster, workdir, f"cluster.partition={partition}", text=_SLOW).reach(EVERY + 5)
    run.take_nodes()
    run.assert_survived()
    assert run.causes() == ["preempted", "max_iterations"]
    assert run.lost() == [5]


def in_the_job(*lines: str) -> str:
    """Lines of shell that the batch script begins with."""
    return f"cluster.setup={list(lines)}"


def test_a_requeued_job_in_which_srun_fails_is_requeued_again(cluster: Sandbox, workdir: Path) -> None:
    broken = 'if [ "${SLURM_RESTART_COUNT:-0}" = 1 ]; then export SLURM_STEP_GRES=gpu:9; fi'
    run = Disturbed.start(cluster, workdir, in_the_job(broken)).reach(EVERY + 10)
    run.scontrol("requeue", run.job_id)
    run.assert_survived()
    assert run.causes() == ["requeued", "rendezvous", "max_iterations"]  # of an attempt that was killed, too
    assert "srun ended with code" in run.verdicts()[1]["message"]


def test_a_job_whose_srun_fails_from_the_start_has_a_verdict_and_ends(cluster: Sandbox, workdir: Path) -> None:
    script(workdir, TRAINING)
    done = launch_on(cluster, workdir, "task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox",
                     "cluster.gpus_per_node=1", "wait=true", in_the_job("export SLURM_STEP_GRES=gpu:9"))  # fmt: skip
    assert done.returncode == 1
    assert "failed: launch (no agent could start: srun ended with code 1)" in done.stdout + done.stderr


def test_an_agent_that_dies_before_its_requeue_reaches_slurm_ends_no_run(
    cluster: Sandbox, workdir: Path, tmp_path: Path
) -> None:
    """The way to the controller hangs, once."""
    tools = tmp_path / "bin"
    tools.mkdir()
    wrapper = tools / "scontrol"
    wrapper.write_text(
        textwrap.dedent(f"""\
        #!/bin/bash
        if [ "$1" = requeue ] && mkdir {tools}/once 2>/dev/null; then sleep 60; fi
        exec /usr/bin/scontrol "$@"
        """)
    )
    wrapper.chmod(0o755)
    run = Disturbed.start(cluster, workdir, in_the_job(f"export PATH={tools}:$PATH")).reach(EVERY + 10)
    host = run.hosts()[0]
    run.kill("agent", host, signal.SIGUSR2)
    wait_until((tools / "once").exists, 60)
    run.kill("agent", host)
    run.assert_survived()
    assert run.causes() == ["time_limit", "max_iterations"]
    assert run.lost() == [0]


def test_runs_that_share_an_allocation_go_on_after_its_agent_was_killed(cluster: Sandbox, workdir: Path) -> None:
    script(workdir, TRAINING)
    done = launch_on(
        cluster, workdir, "-m", "task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox",
        "seed=1,2", "cluster.gpus_per_node=0", arguments(), "sweep.pack=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (sweep,) = runs_in(workdir / "runs")
    runs = [Disturbed(cluster, path).reach(EVERY + 10) for path in sorted(sweep.glob("*-000?"))]
    Disturbed(cluster, next(sweep.glob("**/tasks.json"))).kill("agent", runs[0].hosts()[0])
    for run in runs:
        run.assert_survived()
        assert run.causes() == ["killed", "max_iterations"]
