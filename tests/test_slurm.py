"""Runs on a real Slurm: a private cluster of several nodes on this machine (tests/sandbox)."""

import functools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, ROOT, environment, launcher_command, only_run, result_of, runs_in, script
from tests.sandbox import Sandbox
from tests.test_cli import WITHOUT_TORCH
from tests.test_local import STOPPABLE, metrics_of, wait_until
from tests.warm import Warm

pytestmark = [pytest.mark.slurm, pytest.mark.train]

SCRIPT = ("task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox")

WHO = """\
import os, socket
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_NODEID", "CUDA_VISIBLE_DEVICES")
print("WHO", {**{name: os.environ.get(name) for name in names}, "host": socket.gethostname(), "sum": total.item()})
dist.destroy_process_group()
"""


def in_cluster(cluster: Sandbox) -> dict[str, str]:
    return environment(SLURM_CONF=cluster.env["SLURM_CONF"])


def launch_on(
    cluster: Sandbox, workdir: Path, *arguments: str, timeout: float = 150
) -> "subprocess.CompletedProcess[str]":
    """Run the command line on the login node of the cluster, in a fork of a process there."""
    return warm_on(cluster).run(arguments, workdir, in_cluster(cluster), PATIENCE * timeout)


@functools.cache
def warm_on(cluster: Sandbox) -> Warm:
    """It ends with the cluster."""
    return Warm(functools.partial(cluster.popen, env=in_cluster(cluster)))


def who(run: Path) -> list[dict[str, Any]]:
    """What every rank of the newest attempt said of itself, by rank."""
    import ast

    logs = sorted(run.glob("attempts/*"))[-1].glob("rank-*.log")
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("WHO ")]
    return sorted((ast.literal_eval(line[4:]) for line in lines), key=lambda said: int(said["RANK"]))


def job_of(run: Path) -> str:
    return json.loads((run / "submission.json").read_text())["job_id"]


def slurm_state(cluster: Sandbox, job_id: str) -> str:
    shown = cluster.run(["sacct", "-nPX", "-j", job_id, "-o", "State"]).stdout
    return shown.split()[0] if shown.split() else ""


def test_cartpole_is_solved_by_four_ranks_on_two_hosts(sandbox: Sandbox, workdir: Path) -> None:
    arguments = ("task=cartpole", "cluster=a100x2", "cluster.nodes=2", "cluster.device=cpu", "wait=true")
    done = launch_on(sandbox, workdir, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(workdir)
    result = result_of(run)
    assert (result["outcome"], result["cause"], result["world_size"]) == ("completed", "solved", 4)
    assert result["ranks_in_sync"] is True
    assert result["metrics"]["length_mean"] >= 475
    logs = [(run / "attempts/000" / f"rank-{rank}.log").read_text() for rank in range(4)]
    assert len({next(line for line in log.splitlines() if line.startswith("first obs")) for log in logs}) == 4
    assert "rank 0 of 4" in done.stdout  # rank 0's log was streamed
    assert slurm_state(sandbox, job_of(run)) == "COMPLETED"


def test_hosts_that_sort_differently_as_text_and_a_port_that_is_taken(oddly_named: Sandbox, workdir: Path) -> None:
    script(workdir, WHO)
    (workdir / "hold.py").write_text("""\
import os, socket, time
from launcher.node.ports import candidates
job, held = os.environ["SLURM_JOB_ID"], []
for key in (f"{job}.0", f"{job}.0.0.torchrun"):
    held.append(socket.create_server(("", candidates(key)[0])))
print("holding", [one.getsockname()[1] for one in held], flush=True)
open("held", "w").close()
time.sleep(1000)
""")
    hold = f"cluster.setup=['PYTHONPATH={ROOT} {sys.executable} hold.py & until [ -e held ]; do sleep 0.1; done']"
    done = launch_on(oddly_named, workdir, *SCRIPT, "cluster.nodes=3", hold, "wait=true")
    assert done.returncode == 0, done.stdout + done.stderr
    said = who(only_run(workdir))
    assert [one["host"] for one in said] == ["node2", "node2", "node9", "node9", "node10", "node10"]
    assert all(int(one["RANK"]) == int(one["SLURM_NODEID"]) * 2 + int(one["LOCAL_RANK"]) for one in said)
    assert {one["MASTER_ADDR"] for one in said} == {"node2"}
    assert {one["sum"] for one in said} == {6.0}
    (batch,) = only_run(workdir).glob("slurm/*_batch.out")
    held = re.search(r"holding \[(\d+), (\d+)\]", batch.read_text())
    assert held is not None
    assert said[0]["MASTER_PORT"] not in held.groups()


BESIDE_ANOTHER = """\
import pathlib, time
pathlib.Path("job-" + os.environ["SLURM_JOB_ID"]).touch()
while len(list(pathlib.Path().glob("job-*"))) < 2:
    time.sleep(0.1)
"""


def test_two_jobs_that_share_a_node_do_not_collide(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, WHO + BESIDE_ANOTHER)
    arguments = (*SCRIPT, "cluster.gpus_per_node=1", "cluster.nproc_per_node=2", "cluster.nodelist=node3")
    for _ in range(2):
        assert launch_on(sandbox, workdir, *arguments).returncode == 0
    runs = runs_in(workdir / "runs")
    wait_until(lambda: all((run / "result.json").exists() for run in runs), 90)
    assert [result_of(run)["outcome"] for run in runs] == ["completed", "completed"]
    first, second = who(runs[0]), who(runs[1])
    assert {one["host"] for one in first + second} == {"node3"}
    assert first[0]["MASTER_PORT"] != second[0]["MASTER_PORT"]
    assert first[0]["CUDA_VISIBLE_DEVICES"] != second[0]["CUDA_VISIBLE_DEVICES"]


SHOW = """\
import json, os
shown = {n: v for n, v in os.environ.items() if n.startswith(("SLURM_", "SRUN_")) or n == "CUDA_VISIBLE_DEVICES"}
shown["mask"] = len(os.sched_getaffinity(0))
print("SHOW " + json.dumps(shown))
"""
_OF_THIS_JOB = re.compile(
    r"SLURM_(JOB_?ID|JOB_UID|.*_PORT|.*PID|JOB_(START|END)_TIME|.*NODE(LIST|NAME)|.*IPADDR|TOPOLOGY_ADDR|.*_HOST"
    r"|SUBMIT_DIR|UMASK|RLIMIT_\w+|LAUNCH_\w+)|SLURMD_\w+"
)


def test_a_job_submitted_from_inside_a_job_runs_as_from_outside(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, SHOW)

    def shown(*before: str) -> dict[str, str]:
        command = [*before, *launcher_command(*SCRIPT, "cluster.nproc_per_node=1", "wait=true")]
        done = sandbox.run(command, cwd=workdir, env=in_cluster(sandbox), timeout=PATIENCE * 120)
        assert done.returncode == 0, done.stdout + done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("SHOW ")]
        return {name: value for name, value in json.loads(line[5:]).items() if not _OF_THIS_JOB.fullmatch(name)}

    outside = shown()
    inside = shown("srun", "-N1", "-n1", "-c3", "--mem=3G", "--gpus-per-node=1", "--cpu-bind=verbose", "--time=9")
    assert inside == outside


def test_that_srun_starts_several_runs_is_said_once(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "print('trained')\n")
    command = ["srun", "-N2", *launcher_command("task=script", "library=torchrun", "task.path='train it.py'")]
    done = sandbox.run(command, cwd=workdir, env=in_cluster(sandbox), timeout=PATIENCE * 120)
    assert (done.returncode, done.stdout.count("trained")) == (0, 2), done.stderr
    assert done.stderr.count("srun starts this 2 times, each a run of its own: start it once") == 1


def test_a_rank_that_exits_on_the_second_node_is_named_and_fails_the_job(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, """\
import os, sys, time
from pathlib import Path
if os.environ["RANK"] == "3":
    Path("exited").write_text(str(time.time()))
    try:
        raise RuntimeError("the reason")
    except RuntimeError:
        import traceback; traceback.print_exc()
        sys.exit(7)
time.sleep(100)
""")  # fmt: skip
    done = launch_on(sandbox, workdir, *SCRIPT, "cluster.nodes=2", "wait=true")
    run = only_run(workdir)
    result = result_of(run)
    assert done.returncode == 1
    assert (result["rank"], result["host"], result["exit_code"]) == (3, "node2", 7)
    assert "failed: rank 3 on node2 exited with code 7 (RuntimeError: the reason)" in done.stderr
    assert "Traceback" in (run / "attempts/000/rank-3.log").read_text()
    assert (run / "result.json").stat().st_mtime - float((workdir / "exited").read_text()) < PATIENCE * 10
    assert slurm_state(sandbox, job_of(run)) == "FAILED"


@pytest.fixture
def python_that_never_starts(sandbox: Sandbox, tmp_path: Path) -> Any:
    """On node2 alone, the interpreter is replaced by a program that does nothing."""
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nexec sleep 300\n")
    mute.chmod(0o755)
    python = str(Path(sys.executable).resolve())
    sandbox.on("node2", ["mount", "--bind", str(mute), python], check=True)
    yield
    sandbox.on("node2", ["umount", python], check=True)


@pytest.mark.usefixtures("python_that_never_starts")
def test_a_node_whose_agent_does_not_come_is_named_at_the_deadline(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    arguments = (
        *SCRIPT,
        "cluster.nodes=2",
        "cluster.nodelist='node[1-2]'",
        "watch.rendezvous=5",
        "retry.node_fail=0",
        "wait=true",
    )
    done = launch_on(sandbox, workdir, *arguments)
    result = result_of(only_run(workdir))
    assert done.returncode == 1
    assert (result["outcome"], result["cause"], result["host"]) == ("failed", "rendezvous", "node2")
    assert "no agent came from node2" in done.stderr
    assert 5 <= result["seconds"] < PATIENCE * 10


def test_submission_returns_at_once_needs_no_torch_and_names_the_next_commands(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, STOPPABLE)
    command = [sys.executable, "-c", WITHOUT_TORCH, *SCRIPT, "cluster.nodes=2"]
    done = sandbox.run(command, cwd=workdir, env=in_cluster(sandbox), timeout=PATIENCE * 20)
    assert done.returncode == 0, done.stderr
    run = only_run(workdir)
    job_id = job_of(run)
    assert f"submitted job {job_id}" in done.stdout and str(run) in done.stdout
    wait_until((run / "metrics.jsonl").exists)
    (status,) = json.loads(launch_on(sandbox, workdir, "status", job_id, "--json").stdout)
    assert (status["state"], status["where"], status["nodes"]) == ("running", job_id, "node1,node2")
    for verb in ("status", "logs -f", "cancel"):
        assert f"python -m launcher {verb} {run.name}" in done.stdout
    follow = sandbox.popen(launcher_command("logs", "-f", job_id), cwd=workdir, env=in_cluster(sandbox),
                           stdout=subprocess.PIPE)  # fmt: skip
    assert launch_on(sandbox, workdir, "cancel", run.name).returncode == 0
    wait_until((run / "result.json").exists)
    result = result_of(run)
    assert (result["outcome"], result["cause"]) == ("stopped", "cancelled")
    assert (run / "checkpoints" / f"{result['iteration']:09}" / "seal.json").is_file()  # it was let save
    assert "iteration=1" in follow.communicate(timeout=PATIENCE * 30)[0]
    wait_until(lambda: slurm_state(sandbox, job_id) == "CANCELLED", 20)


def test_a_requeued_job_is_a_second_attempt_that_goes_on_from_the_checkpoint(sandbox: Sandbox, workdir: Path) -> None:
    arguments = ("task=cartpole", "cluster=sandbox", "cluster.nproc_per_node=1", "task.solved=null", "num_envs=8")
    assert launch_on(sandbox, workdir, *arguments, "max_iterations=150", "agent.num_steps_per_env=8").returncode == 0
    run = only_run(workdir)
    wait_until(lambda: (run / "metrics.jsonl").exists() and len(metrics_of(run)) > 3)
    sandbox.run(["scontrol", "requeue", job_of(run)], check=True)
    wait_until(lambda: (run / "attempts/001/rank-0.log").exists(), 60)
    wait_until(lambda: (run / "result.json").exists(), 90)
    result = result_of(run)
    assert (result["outcome"], result["iteration"], result["attempts"]) == ("completed", 150, 2)
    start = json.loads((run / "attempts/001/rendezvous.json").read_text())
    assert Path(start["resume"]).parent == run / "checkpoints"
    assert [line["iteration"] for line in metrics_of(run)] == list(range(1, 151))


def test_the_warning_before_the_time_limit_saves_and_stops_what_is_not_to_go_on(
    sandbox: Sandbox, workdir: Path
) -> None:
    script(workdir, STOPPABLE)
    waiting = sandbox.popen(launcher_command(*SCRIPT, "cluster.nodes=2", "retry.time_limit=0", "wait=true"),
                            cwd=workdir, env=in_cluster(sandbox))  # fmt: skip
    wait_until(lambda: list(workdir.glob("runs/*/metrics.jsonl")))
    run = only_run(workdir)
    sandbox.run(["scancel", "--signal=USR2", job_of(run)], check=True)
    assert waiting.wait(PATIENCE * 60) == 130
    result = result_of(run)
    assert (result["outcome"], result["cause"]) == ("stopped", "time_limit")
    assert list(run.glob("checkpoints/*/seal.json"))


def test_ctrl_c_while_waiting_leaves_the_job_alone(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, STOPPABLE)
    waiting = sandbox.popen(launcher_command(*SCRIPT, "wait=true"), cwd=workdir, env=in_cluster(sandbox),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    wait_until(lambda: list(workdir.glob("runs/*/metrics.jsonl")))
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=PATIENCE * 20)
    run = only_run(workdir)
    assert waiting.returncode == 130
    assert f"job {job_of(run)} goes on" in err and "Traceback" not in err
    seen = len(metrics_of(run))
    wait_until(lambda: len(metrics_of(run)) > seen)
    sandbox.run(["scancel", job_of(run)])
    wait_until((run / "result.json").exists)


@pytest.mark.parametrize(
    ("override", "answer"),
    [("cluster.partition=nix", "partition"), ("cluster.gpus_per_node=3", "node configuration")],
)
def test_what_slurm_refuses_is_said_in_one_line_and_nothing_is_left(
    sandbox: Sandbox, workdir: Path, override: str, answer: str
) -> None:
    script(workdir, "")
    done = launch_on(sandbox, workdir, *SCRIPT, override)
    assert done.returncode == 3
    assert answer in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not runs_in(workdir / "runs")


def test_a_job_that_cannot_start_shows_why(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    assert launch_on(sandbox, workdir, *SCRIPT, "cluster.nodes=9").returncode == 0
    (run,) = runs_in(workdir / "runs")
    (status,) = wait_until(lambda: _with_reason(launch_on(sandbox, workdir, "status", "--json").stdout))
    assert status["state"] == "pending"
    assert status["detail"].startswith("never: partition main has 4 nodes, and the job asks for 9 (Partition")
    assert "has printed nothing (pending" in launch_on(sandbox, workdir, "logs", run.name).stderr
    assert launch_on(sandbox, workdir, "cancel", run.name).returncode == 0


def _with_reason(text: str) -> Any:
    statuses = json.loads(text)
    return statuses if statuses[0]["slurm_reason"] not in ("", "Priority") else None


def test_a_dry_run_says_what_the_controller_says(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    assert "Slurm says" in launch_on(sandbox, workdir, *SCRIPT, "dry_run=true").stdout
    refused = launch_on(sandbox, workdir, *SCRIPT, "cluster.partition=nix", "dry_run=true")
    assert "nvalid partition" in refused.stdout


def test_a_rendered_script_runs_the_same_from_any_directory(sandbox: Sandbox, workdir: Path, tmp_path: Path) -> None:
    script(workdir, WHO)
    assert launch_on(sandbox, workdir, "render", *SCRIPT, "cluster.nodes=2", "-o", "run it.sbatch").returncode == 0
    sandbox.run(["sbatch", str(workdir / "run it.sbatch")], cwd=tmp_path, check=True)
    run = only_run(workdir)
    wait_until((run / "result.json").exists)
    assert result_of(run)["outcome"] == "completed"
    hosts = [one["host"] for one in who(run)]
    assert hosts[0] == hosts[1] < hosts[2] == hosts[3]


def test_a_job_whose_setup_fails_says_why_in_one_line(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    setup = "cluster.setup=['echo no licence >&2; exit 3']"
    done = launch_on(sandbox, workdir, *SCRIPT, setup, "wait=true")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("launcher: failed: job ") and "ended before any rank started (no licence)" in line
    (status,) = json.loads(launch_on(sandbox, workdir, "status", "--json").stdout)
    assert (status["state"], status["detail"], status["message"]) == ("failed", "setup", "no licence")


def test_a_job_that_could_never_start_is_submitted_with_a_warning(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    done = launch_on(sandbox, workdir, *SCRIPT, "cluster.nodes=9")
    assert done.returncode == 0
    assert "would wait for ever, as things are: partition main has 4 nodes, and the job asks for 9" in done.stderr
    assert launch_on(sandbox, workdir, "cancel", only_run(workdir).name).returncode == 0
    wait_until(lambda: slurm_state(sandbox, job_of(only_run(workdir))) == "CANCELLED")
    assert "stopped  cancelled before it started" in launch_on(sandbox, workdir, "status").stdout
