"""``status`` and ``status --watch`` on a real Slurm: why jobs wait, what releases them, and a requeue on the screen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, launcher_command, only_run, script
from tests.made_records import make_open_run
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import SCRIPT, in_cluster, job_of, launch_on
from tests.test_status import Terminal

pytestmark = pytest.mark.slurm

JOBS = {
    "running": ["--nodes=1", "--requeue"],
    "filling": ["--nodes=3", "--exclusive", "--time=10"],
    "resources": ["--nodes=4", "--exclusive"],
    "never": ["--nodes=9"],
    "begin": ["--begin=now+1hour"],
    "held": ["--hold"],
    "array": ["--hold", "--array=0-1"],
    "dependency": ["--dependency=afterok:{held}"],
}
EXPECTED = {
    "running": ("running", ""),
    "resources": ("pending", "waits for free nodes (Resources)"),
    "never": ("pending", "never: partition main has 4 nodes, and the job asks for 9 (PartitionNodeLimit)"),
    "begin": ("pending", "its time to begin has not come (BeginTime)"),
    "held": ("pending", "held by its user (JobHeldUser)"),
    "dependency": ("pending", "waits for another job to end (Dependency)"),
}


def submitted(cluster: Sandbox) -> dict[str, str]:
    """Real jobs that do nothing, by name."""
    ids: dict[str, str] = {}
    for name, options in JOBS.items():
        words = ["sbatch", "--parsable", *(option.format(**ids) for option in options), "--wrap=exec sleep 600"]
        ids[name] = cluster.run(words, check=True).stdout.strip()
    return ids


def rows(cluster: Sandbox, workdir: Path) -> dict[str, dict[str, Any]]:
    return {row["run_id"]: row for row in json.loads(launch_on(cluster, workdir, "status", "--json").stdout)}


def told(found: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {name: (found[name]["state"], found[name]["detail"]) for name in EXPECTED}


def test_why_real_jobs_wait_and_what_lets_them_start(sandbox: Sandbox, workdir: Path) -> None:
    ids = submitted(sandbox)
    for name, job_id in ids.items():
        make_open_run(workdir / "runs" / name, f"{job_id}_1" if name == "array" else job_id, attempts=0)
    try:
        wait_until(lambda: told(rows(sandbox, workdir)) == EXPECTED, 30)
        found = rows(sandbox, workdir)
        assert abs(found["begin"]["starts_at"] - time.time() - 3600) < 120
        assert found["held"]["release"] == f"scontrol release {ids['held']}"
        assert 0 < found["running"]["time_left_s"] <= 3600 and found["never"]["never"]
        sandbox.run(["scontrol", "requeuehold", ids["running"]], check=True)
        sandbox.run(found["array"]["release"].split(), check=True)  # one task of two
        held = ("pending", "requeued and held (job requeued in held state)")
        wait_until(lambda: told(rows(sandbox, workdir))["running"] == held, 30)
        found = rows(sandbox, workdir)
        assert not found["array"]["release"] and "held" not in found["array"]["detail"]
        sandbox.run(found["running"]["release"].split(), check=True)
        wait_until(lambda: not rows(sandbox, workdir)["running"]["release"], 30)
    finally:
        sandbox.run(["scancel", *ids.values()])


WAITS_TO_BE_STOPPED = """\
import os, time
with open(os.environ["LAUNCHER_PROGRESS"], "a") as file:
    file.write('{"iteration": %d, "fps": 1000.0}\\n' % (int(os.environ["LAUNCHER_ATTEMPT"]) + 1))
while not os.path.exists(os.environ["LAUNCHER_STOP_FILE"]):
    time.sleep(0.1)
"""


@pytest.mark.train
def test_a_screen_shows_a_requeue_from_its_beginning_to_its_end(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, WAITS_TO_BE_STOPPED)
    assert launch_on(sandbox, workdir, *SCRIPT).returncode == 0
    run, terminal = only_run(workdir), Terminal(160, 20)
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    watch = launcher_command("status", "--watch")
    process = sandbox.popen(watch, cwd=workdir, env=in_cluster(sandbox) | {"TERM": "xterm"}, **ends)

    def line() -> list[str]:
        """The words of the run's only line."""
        lines = [one for one in terminal.picture() if one.startswith(run.name)]
        assert len(lines) <= 1
        return lines[0].split()[1:] if lines else []

    try:
        wait_until(lambda: line()[:1] == ["running"] and "1,000" in line())
        assert line()[-1] == "1"
        sandbox.run(["scontrol", "requeuehold", job_of(run)], check=True)  # or it would be over between two looks
        wait_until(lambda: line()[:4] == ["pending", "scontrol", "release", f"{job_of(run)}:"])
        sandbox.run(["scontrol", "release", job_of(run)], check=True)
        wait_until(lambda: line()[:1] == ["running"] and line()[-1] == "2")
        assert launch_on(sandbox, workdir, "cancel", run.name).returncode == 0
        wait_until(lambda: line()[:1] == ["stopped"])
        terminal.press("q")
        assert process.wait(PATIENCE * 10) == 0
    finally:
        process.kill()
        process.wait()
    terminal.close()
