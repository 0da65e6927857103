"""No job is lost: a run that is preempted, cut off or killed ends where an undisturbed one would have ended."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, launcher_command, runs_in, script, started
from tests.sandbox import Sandbox
from tests.survival import EVERY, SPAWNED, TRAINING, Disturbed, arguments
from tests.test_local import read_all, wait_until
from tests.test_slurm import in_cluster, launch_on, slurm_state

pytestmark = [pytest.mark.slurm, pytest.mark.train]

_PARTITIONS = "\n".join(
    f"PartitionName={name} Nodes=ALL DefaultTime=60 PriorityTier=1 PreemptMode={mode} GraceTime={grace} State=UP"
    for name, mode, grace in (("cancel", "CANCEL", 8), ("now", "REQUEUE", 0), ("cancel_now", "CANCEL", 0))
)


_DEAF = """\
import signal
signal.signal, keep = (lambda *_: None), signal.signal
keep(signal.SIGTERM, signal.SIG_IGN)
import launcher.train.rank, launcher.train.fence, pathlib
launcher.train.rank.Rank.asked_to_stop = property(lambda self: False)
"""


@pytest.fixture(scope="module")
def cluster() -> Generator[Sandbox]:
    """Partitions of all kinds of preemption."""
    yield from started(nodes=5, gpus=1, grace=8, extra_conf=_PARTITIONS)


@pytest.mark.parametrize("partition", ["main", "cancel", "now", "cancel_now"])
def test_a_preempted_run_loses_no_iteration_and_goes_on(cluster: Sandbox, workdir: Path, partition: str) -> None:
    spawned = [SPAWNED] if partition == "cancel" else []
    run = Disturbed.start(cluster, workdir, f"cluster.partition={partition}", *spawned).reach(30)
    run.take_nodes()
    run.assert_survived()
    assert run.causes() == ["preempted", "max_iterations"]
    assert run.lost() == [0]
    run.report(f"preempted, partition {partition}")


def test_a_preempted_job_that_may_not_be_requeued_goes_on_as_another_job(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(
        cluster, workdir, "cluster.skip_directives=[requeue]", "cluster.extra_directives={no-requeue: true}"
    ).reach(30)
    first = run.job_id
    run.take_nodes()
    run.assert_survived()
    assert run.causes() == ["preempted", "max_iterations"]
    assert run.lost() == [0]
    assert run.job_id != first


def test_runs_that_share_a_job_that_may_not_be_requeued_go_on_as_another_job(cluster: Sandbox, workdir: Path) -> None:
    script(workdir, TRAINING)
    done = launch_on(
        cluster, workdir, "-m", "task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox",
        "cluster.gpus_per_node=1", "sweep.pack=2", f"task.args=[{EVERY},10,0],[{EVERY},10,1]",
        "cluster.skip_directives=[requeue]", "cluster.extra_directives={no-requeue: true}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    short, long = (Disturbed(cluster, path) for path in sorted(workdir.glob("runs/*/*-000?")))
    first = long.reach(30).job_id
    short.end()
    long.take_nodes()
    assert long.end()["outcome"] == "completed"
    assert long.causes() == ["preempted", "max_iterations"] and long.lost() == [0]
    assert short.causes() == ["max_iterations"] and short.job_id == first != long.job_id


def test_an_administrators_requeue_loses_no_iteration(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir).reach(30)
    run.scontrol("update", "partitionname=main", "state=down")  # for new starts, so that there is time to look
    try:
        run.scontrol("requeue", run.job_id)
        wait_until(lambda: "goes on after requeued" in launch_on(cluster, workdir, "status", run.run.name).stdout, 20)
    finally:
        run.scontrol("update", "partitionname=main", "state=up")
    run.assert_survived()
    assert run.causes() == ["requeued", "max_iterations"]
    assert run.lost() == [0]
    run.report("scontrol requeue")


_TALKATIVE = TRAINING.replace(
    "done += 1", 'done += 1; print("line", done, "of", os.environ["LAUNCHER_ATTEMPT"], flush=True)'
)


def test_logs_that_are_followed_in_a_terminal_have_every_line_once_over_a_requeue(
    cluster: Sandbox, workdir: Path
) -> None:
    """And whoever wants to know of its end is told once, not at the requeue."""
    words = ("cluster.nodes=1", "notify.command=[tee,-a,told]")
    run = Disturbed.start(cluster, workdir, *words, text=_TALKATIVE)
    terminal, other_end = pty.openpty()
    command = launcher_command("logs", "-f", run.run.name)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), other_end)
    following = cluster.popen(command, cwd=workdir, env=in_cluster(cluster), **streams)
    os.close(other_end)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read_all, terminal)
        run.reach(10).scontrol("requeue", run.job_id)
        run.assert_survived()
        assert following.wait(PATIENCE * 60) == 0
    shown = reading.result(PATIENCE * 10).replace("\r\n", "\n")
    written = [(attempt / "rank-0.log").read_text() for attempt in sorted(run.run.glob("attempts/*"))]
    last = run.iterations()[-1]
    assert len(written) == 2 and f"line {last} of 1" in written[1]
    assert [line for line in shown.splitlines() if line.startswith("line ")] == [
        line for text in written for line in text.splitlines() if line.startswith("line ")
    ]
    assert f"{written[0]}==> attempt 2 · job {run.job_id} · " in re.sub("launcher: .*\n", "", shown)
    assert "launcher: pending: " in shown
    told = json.loads((workdir / "told").read_text())
    assert (told["outcome"], told["iteration"], told["job_id"]) == ("completed", last, run.job_id)


def test_runs_that_share_an_allocation_all_go_on_after_it_is_preempted(cluster: Sandbox, workdir: Path) -> None:
    script(workdir, TRAINING)
    done = launch_on(
        cluster, workdir, "-m", "task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox",
        "seed=1,2", "cluster.gpus_per_node=0", arguments(), "sweep.pack=2",
        "cluster.nodelist=node1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (sweep,) = runs_in(workdir / "runs")
    runs = [Disturbed(cluster, path).reach(30) for path in sorted(sweep.glob("*-000?"))]
    runs[0].take_nodes()
    for run in runs:
        run.assert_survived()
        assert run.causes() == ["preempted", "max_iterations"]
        assert run.lost() == [0]


def test_a_cancelled_run_is_saved_and_does_not_come_back(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir).reach(30)
    cluster.run(["scancel", run.job_id], check=True)
    result = run.end(30)
    assert (result["outcome"], result["cause"]) == ("stopped", "cancelled")
    assert f"resume {run.run.name}" in result["hint"]
    assert (run.run / "checkpoints" / f"{result['iteration']:09}" / "seal.json").is_file()
    wait_until(lambda: slurm_state(cluster, run.job_id) == "CANCELLED", 30)
    wait_until(lambda: not run.processes(), 10)


def test_a_cancelled_run_whose_ranks_cannot_save_in_time_has_a_verdict_all_the_same(
    cluster: Sandbox, workdir: Path
) -> None:
    run = Disturbed.start(cluster, workdir, text=_DEAF + TRAINING).reach(30)
    cluster.run(["scancel", run.job_id], check=True)
    result = run.end(30)
    assert (result["outcome"], result["cause"]) == ("stopped", "cancelled")
    assert "killed before its ranks had saved" in result["message"] and f"resume {run.run.name}" in result["hint"]
    wait_until(lambda: slurm_state(cluster, run.job_id) == "CANCELLED", 30)
    wait_until(lambda: not run.processes(), 10)


@pytest.mark.parametrize(("kind", "start"), [("rank", "fork"), ("torchrun", "spawn"), ("torchrun", "fork")])
def test_what_is_killed_starts_again_in_the_same_job(cluster: Sandbox, workdir: Path, kind: str, start: str) -> None:
    spawned = [SPAWNED] if start == "spawn" else []
    run = Disturbed.start(cluster, workdir, *spawned, ranks=2).reach(EVERY + 10)
    host = run.hosts()[1]
    run.kill(kind, host)
    run.assert_survived()
    first, last = run.verdicts()
    assert (first["cause"], first["host"], first["signal"]) == ("crash", host, "SIGKILL")
    assert (first["then"], last["cause"]) == ("again in this job", "max_iterations")
    assert 0 <= run.lost()[0] <= EVERY
    assert "Restarts=0" in run.scontrol("show", "job", run.job_id)
    run.report(f"{kind} killed with -9")


@pytest.mark.parametrize(("node", "cause"), [(0, "killed"), (1, "node_lost")])
def test_a_killed_agent_is_a_requeue(cluster: Sandbox, workdir: Path, node: int, cause: str) -> None:
    run = Disturbed.start(cluster, workdir, SPAWNED).reach(EVERY + 10)
    host = run.hosts()[node]
    run.kill("agent", host)
    run.assert_survived()
    assert run.causes() == [cause, "max_iterations"]
    assert run.verdicts()[0]["host"] == host
    assert run.lost()[0] <= EVERY
    run.report(f"agent of node {node} killed with -9")


def test_the_time_limit_is_a_requeue_of_ours_and_loses_no_iteration(cluster: Sandbox, workdir: Path) -> None:
    # Slurm looks every 30 s, and sends what would be late at the next look: here after 5 to 35 s
    run = Disturbed.start(cluster, workdir, "cluster.time=1", "cluster.signal_lead=25")
    run.assert_survived()
    assert set(run.causes()[:-1]) == {"time_limit"}
    assert set(run.lost()) == {0}
    assert {(verdict["then"], verdict["hint"]) for verdict in run.verdicts()[:-1]} == {("requeued", "")}
    run.report("time limit")


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_taken_down_costs_at_most_a_checkpoint_interval(
    cluster: Sandbox, workdir: Path, node: int
) -> None:
    run = Disturbed.start(cluster, workdir).reach(EVERY + 10)
    host = run.hosts()[node]
    run.scontrol("update", f"nodename={host}", "state=down", "reason=test")
    try:
        run.assert_survived()
        assert run.causes() == ["node_lost", "max_iterations"]
        assert run.verdicts()[0]["host"] == host
        assert host not in run.hosts()
        assert run.lost()[0] <= EVERY
        run.report(f"node {node} set down")
    finally:
        run.scontrol("update", f"nodename={host}", "state=idle")


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_loses_power_costs_at_most_a_checkpoint_interval(
    cluster: Sandbox, workdir: Path, node: int
) -> None:
    run = Disturbed.start(cluster, workdir).reach(EVERY + 10)
    host = run.hosts()[node]
    cluster.fail(host)
    try:
        run.assert_survived()
        assert run.causes() == ["node_lost", "max_iterations"]
        assert run.verdicts()[0]["host"] == host
        assert host not in run.hosts()
        assert run.lost()[0] <= EVERY
        run.report(f"node {node} lost power")
    finally:
        cluster.recover(host)


def test_a_start_that_slurm_has_given_up_ends_itself_and_writes_nothing(cluster: Sandbox, workdir: Path) -> None:
    """Only slurmd dies: the step goes on while Slurm starts the job again elsewhere."""
    run = Disturbed.start(cluster, workdir, "cluster.nodes=1").reach(EVERY + 10)
    (host,) = run.hosts()
    cluster.crash(host)
    try:
        wait_until(lambda: run.newest.name == "001", 90)
        wait_until(lambda: not any(env.get("SLURMD_NODENAME") == host for env in run.processes().values()), 20)
        run.assert_survived()
        assert run.causes()[-1] == "max_iterations" and len(run.causes()) == 2
        run.report("slurmd of node 0 killed alone")
    finally:
        cluster.recover(host)


def test_a_second_sigterm_ends_a_run_at_once_for_good(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir, text=_DEAF + TRAINING).reach(10)
    cluster.run(["scancel", "--signal=TERM", run.job_id], check=True)
    wait_until(lambda: '"stop"' in (run.newest / "events.jsonl").read_text())
    time.sleep(1.5)  # within a second it would be the same signal, which has come on several ways
    cluster.run(["scancel", "--signal=TERM", run.job_id], check=True)
    result = run.end(20)
    assert (result["outcome"], result["cause"]) == ("stopped", "terminated")
    wait_until(lambda: slurm_state(cluster, run.job_id) == "FAILED", 30)
    wait_until(lambda: not run.processes(), 10)


def test_ranks_that_ignore_the_warning_go_on_from_the_last_checkpoint(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir, text=_DEAF + TRAINING).reach(EVERY + 10)
    run.take_nodes()
    run.assert_survived()
    assert set(run.causes()[:-1]) <= {"preempted", "killed"}
    run.report("ranks that ignore SIGTERM, preempted")


def test_a_spare_node_takes_over_from_one_that_lost_power(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir, "cluster.spare_nodes=1", SPAWNED).reach(EVERY + 10)
    before = run.hosts()
    cluster.fail(before[1])
    try:
        run.assert_survived()
        first, last = run.verdicts()
        assert (first["cause"], first["host"], first["then"]) == ("node_lost", before[1], "again in this job")
        assert last["world_size"] == 2
        assert before[1] not in run.hosts() and run.hosts()[0] == before[0]
        assert "Restarts=0" in run.scontrol("show", "job", run.job_id)
        run.report("node 1 lost power, a spare node took over")
    finally:
        cluster.recover(before[1])


def test_an_elastic_run_starts_with_what_it_gets_and_goes_on_with_what_is_left(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir, "cluster.nodes=1-3", "cluster.nodelist='node[1-3]'").reach(EVERY + 10)
    before = run.hosts()
    assert before == ["node1", "node2", "node3"]
    cluster.fail("node2")
    try:
        run.assert_survived()
        assert run.hosts() == ["node1", "node3"]
        assert [verdict["world_size"] for verdict in run.verdicts()] == [3, 2]
        assert "Restarts=0" in run.scontrol("show", "job", run.job_id)
        run.report("node 1 lost power, an elastic run went on")
    finally:
        cluster.recover("node2")


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A directory with room for a run and little more."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


_COUNTING = TRAINING.replace("done += 1", 'done += 1; rank.rank or open("done", "w").write(str(done))')


def done_in(workdir: Path) -> int:
    """Iterations of that training, whatever can be written into the run's directory."""
    return int((workdir / "done").read_text() or 0)


def test_a_full_disk_costs_checkpoints_and_not_the_run(small_disk: Path, workdir: Path) -> None:
    with Sandbox.start(nodes=2, gpus=1, accounting=False) as cluster:  # started after the mount, and so sees it
        run = Disturbed.start(cluster, workdir, f"runs_dir={small_disk}", text=_COUNTING).reach(EVERY + 5)
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(b"x" * 65536):
                pass
        full = done_in(workdir)
        wait_until(lambda: done_in(workdir) > full + 2 * EVERY)
        filler.unlink()
        run.let_end(workdir)
        run.assert_survived()
        assert run.causes() == ["max_iterations"]
        said = (run.newest / "rank-0.log").read_text()
        assert "was not saved: No space left on device" in said or "cannot be written (No space left" in said


def test_a_run_directory_that_is_read_only_for_a_while_costs_nothing(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir, text=_COUNTING).reach(EVERY + 10)
    hosts, path = run.hosts(), str(run.run)
    for host in hosts:
        cluster.on(host, ["mount", "--bind", "-o", "ro", path, path], check=True)
    seen = run.iterations()[-1]
    wait_until(lambda: done_in(workdir) > seen + 3 * EVERY)
    for host in hosts:
        cluster.on(host, ["umount", path], check=True)
    run.let_end(workdir)
    run.assert_survived()
    assert run.causes() == ["max_iterations"]


def test_a_controller_that_is_away_costs_nothing(cluster: Sandbox, workdir: Path) -> None:
    run = Disturbed.start(cluster, workdir, endless=2).reach(10)
    run.scontrol("shutdown", "slurmctld")
    try:
        wait_until(lambda: cluster.run(["scontrol", "ping"]).returncode != 0, 20)
        run.kill("rank", run.hosts()[1])  # what follows is decided without a controller
        wait_until(lambda: run.newest.name == "001", 60)
        refused = launch_on(cluster, workdir, "task=script", "library=torchrun", "task.path='train it.py'",
                            "cluster=sandbox")  # fmt: skip
        assert refused.returncode == 3 and len(refused.stderr.splitlines()) == 1
    finally:
        assert cluster.run(["slurmctld"]).returncode == 0
    run.let_end(workdir)
    run.assert_survived()
    assert run.causes() == ["crash", "max_iterations"]
    wait_until(lambda: slurm_state(cluster, run.job_id) == "COMPLETED", 60)


def test_a_time_limit_that_comes_while_the_controller_is_away_is_a_requeue_when_it_is_back(
    cluster: Sandbox, workdir: Path
) -> None:
    run = Disturbed.start(cluster, workdir).reach(10)
    run.scontrol("shutdown", "slurmctld")
    try:
        wait_until(lambda: cluster.run(["scontrol", "ping"]).returncode != 0, 20)
        run.kill("agent", run.hosts()[0], signal.SIGUSR2)
        wait_until(lambda: run.causes() == ["time_limit"], 60)
    finally:
        assert cluster.run(["slurmctld"]).returncode == 0
    run.assert_survived()
    assert run.causes() == ["time_limit", "max_iterations"]
    assert run.lost() == [0]


def test_the_signal_that_some_sites_send_besides_changes_nothing(workdir: Path) -> None:
    user_signal = "SlurmctldParameters=preempt_send_user_signal"
    with Sandbox.start(nodes=2, gpus=1, grace=8, accounting=False, extra_conf=user_signal) as cluster:
        run = Disturbed.start(cluster, workdir).reach(30)
        run.take_nodes()
        run.assert_survived()
        assert run.causes() == ["preempted", "max_iterations"]
        assert run.lost() == [0]
