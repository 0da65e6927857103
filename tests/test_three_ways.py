"""A run leaves as a submitit job, as a script for sbatch, or as a command for each host: the ranks see no difference.

On a real Slurm. Its nodes are hosts of their own, so that they serve as machines without a scheduler, too.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, environment, launcher_command, only_run, result_of, runs_in, script
from tests.sandbox import Sandbox
from tests.test_local import STOPPABLE, wait_until
from tests.test_slurm import SCRIPT, WHO, in_cluster, job_of, launch_on, slurm_state, who

pytestmark = [pytest.mark.slurm, pytest.mark.train]

Done = subprocess.CompletedProcess[str]

SEEN = """\
import json, os, sys
print("SEEN " + json.dumps([sys.argv, os.getcwd(), dict(os.environ)]))
"""
NASTY = ("--x", "a b", "it's", "$(hi) `x`", "é,%=", "", "-1")
BY_NATURE = re.compile(
    r"SLURM\w*|LAUNCHER_JOB_ID"  # of a job
    r"|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK|GPU_DEVICE_ORDINAL"  # of its GPUs
    r"|SRUN_\w+|ENVIRONMENT|TMPDIR|HOSTNAME"  # Slurm sets them for a task
    r"|SUBMITIT_EXECUTOR"  # submitit says that it was there
    r"|MASTER_PORT"  # a free one
    r"|LAUNCHER_RANK_BEGAN"  # a moment
    r"|SHLVL|OLDPWD|_"  # how many shells, and which, are between
    r"|TORCHELASTIC_ERROR_FILE"  # a directory with a random name
)
"""Variables of the ranks that may differ between the three ways."""


def start_on(cluster: Sandbox, commands: Mapping[str, str], directory: Path) -> dict[str, "Future[Done]"]:
    """Start a command on each of some nodes at once, as if each was pasted into a shell there."""
    pool = ThreadPoolExecutor()

    def run(node: str, command: str) -> Done:
        return cluster.on(node, ["bash", "-c", command], cwd=directory, env=environment(), timeout=PATIENCE * 120)

    return {node: pool.submit(run, node, command) for node, command in commands.items()}


def commands_of(done: Done, *hosts: str) -> dict[str, str]:
    """The command of each host, from what the launcher printed."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^# on (\S+)\n(.+)$", done.stdout, re.M)
    assert [host for host, _ in found] == list(hosts)
    return dict(found)


def by_hand(cluster: Sandbox, workdir: Path, *arguments: str) -> Done:
    return cluster.run(launcher_command("commands", *arguments), cwd=workdir, env=environment())


def submit(cluster: Sandbox, file: Path | str, directory: Path) -> str:
    """sbatch, by hand; returns the job's id."""
    submitted = cluster.run(["sbatch", "--parsable", str(file)], cwd=directory, env=in_cluster(cluster), check=True)
    return submitted.stdout.strip()


def end_of(cluster: Sandbox, job_id: str) -> str:
    """How the job ended. (`sbatch --wait` looks only every ten seconds or more.)"""
    return wait_until(lambda: state if (state := slurm_state(cluster, job_id)) in ENDED else "", 120)


ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def seen(run: Path) -> list[Any]:
    """What each rank saw, without what names this run."""
    logs = [(run / "attempts/000" / f"rank-{rank}.log").read_text() for rank in range(4)]
    lines = [line for log in logs for line in log.splitlines() if line.startswith("SEEN ")]
    ranks = [json.loads(line[5:].replace(run.name, "RUN")) for line in lines]
    assert len(ranks) == 4
    return [[argv, cwd, {k: v for k, v in env.items() if not BY_NATURE.fullmatch(k)}] for argv, cwd, env in ranks]


def test_the_three_ways_give_the_ranks_the_same(sandbox: Sandbox, workdir: Path, tmp_path: Path) -> None:
    script(workdir, SEEN)
    words = ",".join("'" + word.replace("'", "\\'") + "'" for word in NASTY)
    arguments = (
        *SCRIPT, "cluster.nodes=2", "cluster.nodelist=node[1-2]", f"task.args=[{words}]", "cluster.env.X='a,b $(x) é'",
        "cluster.setup=['export FROM_SETUP=\"$PWD\"']",
    )  # fmt: skip

    def new_run() -> Path:
        (run,) = set(runs_in(workdir / "runs")) - known
        known.add(run)
        return run

    known: set[Path] = set()
    assert launch_on(sandbox, workdir, *arguments, "wait=true").returncode == 0
    by_submitit = seen(new_run())

    assert launch_on(sandbox, workdir, "render", *arguments, "-o", "run it.sbatch").returncode == 0
    assert end_of(sandbox, submit(sandbox, workdir / "run it.sbatch", tmp_path)) == "COMPLETED"
    by_sbatch = seen(new_run())

    pasted = commands_of(by_hand(sandbox, workdir, *arguments, "cluster.hosts=node[1-2]"), "node1", "node2")
    for done in start_on(sandbox, pasted, tmp_path).values():
        assert done.result().returncode == 0, done.result().stderr
    by_commands = seen(new_run())

    assert by_submitit[0][0][1:] == list(NASTY)
    assert by_submitit[0][1] == by_submitit[0][2]["FROM_SETUP"] == str(workdir)
    assert by_submitit[0][2]["X"] == "a,b $(x) é"
    for another_way in (by_sbatch, by_commands):
        for (argv, cwd, environment_), (its_argv, its_cwd, its_environment) in zip(by_submitit, another_way):
            assert (its_argv, its_cwd) == (argv, cwd)
            assert set(environment_.items()) ^ set(its_environment.items()) == set()


def test_a_rendered_script_is_edited_copied_and_submitted_from_anywhere(
    sandbox: Sandbox, workdir: Path, tmp_path: Path
) -> None:
    script(workdir, WHO)
    assert launch_on(sandbox, workdir, "render", *SCRIPT, "cluster.nodes=2", "-o", "run it.sbatch").returncode == 0
    mailed = tmp_path / "mailed.sbatch"
    text = (workdir / "run it.sbatch").read_text()
    mailed.write_text(text.replace("#SBATCH --nodes=2", "#SBATCH --nodes=2\n#SBATCH --comment='by me'"))
    (workdir / "run it.sbatch").unlink()
    assert end_of(sandbox, submit(sandbox, mailed.name, tmp_path)) == "COMPLETED"
    run = only_run(workdir)
    assert result_of(run)["outcome"] == "completed"
    assert [one["host"] for one in who(run)] == ["node1", "node1", "node2", "node2"]


def test_a_script_submitted_twice_trains_once_at_a_time(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, WHO + "import time\nwhile not os.path.exists('over'):\n    time.sleep(0.1)\n")
    arguments = ("render", *SCRIPT, "cluster.nodes=1", "cluster.gpus_per_node=1", "-o", "run.sbatch")
    assert launch_on(sandbox, workdir, *arguments).returncode == 0
    jobs = [submit(sandbox, "run.sbatch", workdir) for _ in range(2)]
    run = only_run(workdir)
    wait_until(lambda: "FAILED" in [slurm_state(sandbox, job) for job in jobs])
    (workdir / "over").touch()
    assert sorted(end_of(sandbox, job) for job in jobs) == ["COMPLETED", "FAILED"]
    assert (result_of(run)["outcome"], result_of(run)["attempts"]) == ("completed", 1)
    said = "".join(path.read_text() for path in (run / "slurm").iterdir())
    assert f"already being trained by job {job_of(run)}: this start leaves it alone" in said
    assert end_of(sandbox, submit(sandbox, "run.sbatch", workdir)) == "COMPLETED"  # later: another attempt
    assert (result_of(run)["outcome"], result_of(run)["attempts"]) == ("completed", 2)
    assert job_of(run) not in jobs


def test_a_users_own_template_is_submitted(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, WHO)
    (workdir / "my own.sbatch").write_text("""\
#!/bin/bash
{% include "partials/header.sbatch" %}
{% include "partials/environment.sh" %}
echo "mine: {{ plan.run_id }}" >mine.txt
srun {{ job.srun_args | words }} {{ job.agent | words }}
""")
    arguments = ("render", *SCRIPT, "cluster.nodes=2", "--template", "my own.sbatch", "-o", "run.sbatch")
    assert launch_on(sandbox, workdir, *arguments).returncode == 0
    assert end_of(sandbox, submit(sandbox, "run.sbatch", workdir)) == "COMPLETED"
    run = only_run(workdir)
    assert result_of(run)["outcome"] == "completed"
    assert (workdir / "mine.txt").read_text() == f"mine: {run.name}\n"


HOSTS = ("task=script", "library=torchrun", "task.path='train it.py'", "cluster.hosts=node[1-2]")


def test_two_hosts_without_a_scheduler_train_save_stop_and_start_again(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, STOPPABLE)

    def ask(node: str, *arguments: str) -> Done:
        return sandbox.on(node, launcher_command(*arguments), cwd=workdir, env=environment())

    pasted = commands_of(by_hand(sandbox, workdir, *HOSTS), "node1", "node2")
    run = only_run(workdir)
    assert "pending  nobody has started it on node1" in ask("node1", "status").stdout
    assert "nobody has started it" in ask("node1", "cancel", run.name).stderr

    started = start_on(sandbox, pasted, workdir)
    wait_until(lambda: (run / "metrics.jsonl").exists())
    assert "running" in ask("node1", "status").stdout
    assert "started on node1: ask there" in ask("node2", "status").stdout
    assert "started on node1: ask there" in ask("node2", "cancel", run.name).stderr
    assert "iteration=1" in ask("node2", "logs", run.name).stdout
    for node, who_has_it in (("node1", r"process \d+ on node1"), ("node2", "node 1 has already been started")):
        again = sandbox.on(node, ["bash", "-c", pasted[node]], cwd=workdir, env=environment())
        assert again.returncode == 1
        assert re.search(who_has_it, again.stdout + again.stderr)

    assert ask("node1", "cancel", run.name).returncode == 0
    assert [done.result().returncode for done in started.values()] == [143, 143]
    first = result_of(run)
    assert (first["outcome"], first["cause"], first["world_size"]) == ("stopped", "terminated", 2)
    assert (run / "checkpoints" / f"{first['iteration']:09}" / "seal.json").is_file()

    started = start_on(sandbox, pasted, workdir)
    wait_until((run / "attempts/001/rank-1.log").exists)
    starts = json.loads((run / "attempts/001/rendezvous.json").read_text())
    assert Path(starts["resume"]).parent == run / "checkpoints"
    assert ask("node1", "cancel", run.name).returncode == 0
    assert [done.result().returncode for done in started.values()] == [143, 143]
    assert result_of(run)["attempts"] == 2


def test_a_command_on_the_wrong_host_and_a_host_that_never_starts_are_told(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    pasted = commands_of(by_hand(sandbox, workdir, *HOSTS, "watch.rendezvous=4"), "node1", "node2")
    for node, answer in (
        ("node2", "this command is for node1, and this host is node2: start the command of node2 here"),
        ("node3", "this command is for node1, and this host is node3: it is none of node1, node2"),
    ):
        done = sandbox.on(node, ["bash", "-c", pasted["node1"]], cwd=workdir, env=environment())
        assert (done.returncode, done.stderr) == (1, f"launcher: {answer}\n")
    alone = sandbox.on("node2", ["bash", "-c", pasted["node2"]], cwd=workdir, env=environment())
    assert alone.returncode == 1
    assert "no agent came on node1 (node 0) within 4 s" in alone.stdout
    alone = sandbox.on("node1", ["bash", "-c", pasted["node1"]], cwd=workdir, env=environment())
    assert alone.returncode == 1
    assert "waits for node2" in alone.stdout
    result = result_of(only_run(workdir))
    assert (result["cause"], result["host"]) == ("rendezvous", "node2")
    assert "was its command started there in time" in result["hint"]
