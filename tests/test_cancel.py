"""``cancel``: who saves, who does not, and who goes on."""

import json
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Launch, environment, launcher_command, result_of, script, started
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import launch_on
from tests.test_sweeps import ONE_RANK, rows

pytestmark = pytest.mark.train
HERE = ("task=script", "library=torchrun", "task.path='train it.py'", "watch.stop_grace=200")
SAVES_SLOWLY = """\
import os, signal, time
from pathlib import Path

def save(*_):
    Path(os.environ["LAUNCHER_RUN_DIR"], "saves").touch()
    time.sleep(300)

signal.signal(signal.SIGTERM, save)
Path(os.environ["LAUNCHER_RUN_DIR"], "trains").touch()
while not Path("go").exists():
    time.sleep(0.1)
"""
Ask = Callable[..., subprocess.CompletedProcess[str]]


def runs_that(word: str) -> list[Path]:
    """The runs whose script has come so far."""
    return sorted(path.parent for path in Path("runs").glob(f"**/{word}"))


@contextmanager
def going_on(*words: str) -> Generator[subprocess.Popen[bytes]]:
    """The command, on this machine, until it has ended."""
    command = launcher_command(*words)
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            Path("go").touch()


def cancelled_at_once(ask: Ask, run: Path) -> None:
    """It saves first, and then its person does not want to wait for that any more."""
    asked = ask("cancel", run.name)
    assert (asked.returncode, asked.stdout) == (0, f"asked {run.name} to save and stop\n")
    wait_until(lambda: runs_that("saves") == [run])
    time.sleep(1)
    assert not (run / "result.json").exists()
    asked = ask("cancel", "--now", run.name)
    assert (asked.returncode, asked.stdout) == (0, f"asked {run.name} to end at once\n"), asked.stderr
    wait_until((run / "result.json").exists, 20)
    events = [json.loads(line) for line in (run / "attempts/000/events.jsonl").read_text().splitlines()]
    assert [event["grace_s"] for event in events if event["event"] == "stop"] == [200.0, 0.0]
    assert result_of(run)["outcome"] == "stopped"
    assert not (run / "cancel").exists()


def test_who_does_not_want_to_wait_for_saving_here_ends_it(launch: Launch, workdir: Path) -> None:
    script(workdir, SAVES_SLOWLY)
    with going_on(*HERE) as command:
        wait_until(lambda: runs_that("trains"))
        cancelled_at_once(launch, runs_that("trains")[0])
        assert command.wait(30) == 130


def test_a_run_that_is_cancelled_now_is_not_asked_to_save(launch: Launch, workdir: Path) -> None:
    script(workdir, SAVES_SLOWLY)
    with going_on(*HERE, "cluster.nproc_per_node=2") as command:
        wait_until(lambda: runs_that("trains"))
        (run,) = runs_that("trains")
        assert launch("cancel", run.name, "--now").returncode == 0
        command.wait(30)
    assert result_of(run)["outcome"] == "stopped" and not runs_that("saves")


def test_a_run_that_waits_for_its_turn_here_can_be_cancelled_alone(launch: Launch, workdir: Path) -> None:
    script(workdir, SAVES_SLOWLY)
    with going_on("-m", *HERE, "seed=1,2,3", "sweep.parallel=1") as command:
        wait_until(lambda: runs_that("trains"))
        first, second, third = runs_that("plan.json")
        asked = launch("cancel", second.name)
        assert (asked.returncode, asked.stdout) == (0, f"asked {second.name} to save and stop\n"), asked.stderr
        assert "its turn will not come" in launch("status", second.name).stdout
        Path("go").touch()
        command.wait(60)
    assert runs_that("trains") == [first, third]
    assert [result_of(run)["outcome"] for run in (first, second, third)] == ["completed", "stopped", "completed"]
    assert result_of(second)["message"] == "while it waited for its turn"
    again = launch("resume", second.name)
    assert (again.returncode, result_of(second)["outcome"]) == (0, "completed"), again.stderr


@pytest.fixture
def on(sandbox: Sandbox, workdir: Path) -> Ask:
    return lambda *words: launch_on(sandbox, workdir, *words)


@pytest.fixture
def patient() -> Generator[Sandbox]:
    """A cluster that leaves a cancelled job time to save."""
    yield from started(nodes=2, gpus=1, extra_conf="KillWait=200\n")


@pytest.mark.slurm
def test_who_does_not_want_to_wait_for_saving_in_a_job_ends_it(patient: Sandbox, workdir: Path) -> None:
    script(workdir, SAVES_SLOWLY)
    done = launch_on(patient, workdir, *ONE_RANK, "cluster.nodes=2", "watch.stop_grace=200")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: runs_that("trains"))
    cancelled_at_once(lambda *words: launch_on(patient, workdir, *words), runs_that("trains")[0])
    assert result_of(runs_that("trains")[0])["cause"] == "cancelled"


@pytest.mark.slurm
@pytest.mark.parametrize("now", [False, True])
def test_of_runs_that_share_a_job_one_can_be_cancelled_alone(
    on: Ask, sandbox: Sandbox, workdir: Path, now: bool
) -> None:
    script(workdir, SAVES_SLOWLY.replace("time.sleep(300)", "raise SystemExit(0)"))
    packed = [word for word in ONE_RANK if "gpus_per_node" not in word]
    assert on("-m", *packed, "cluster.gpus_per_node=2", "seed=1,2", "sweep.pack=2").returncode == 0
    wait_until(lambda: len(runs_that("trains")) == 2)
    first, second = runs_that("trains")
    assert on("cancel", second.name, *["--now"] * now).returncode == 0
    wait_until((second / "result.json").exists)
    assert (result_of(second)["outcome"], result_of(second)["cause"]) == ("stopped", "cancelled")
    assert runs_that("saves") == ([] if now else [second])
    states = {row["run_id"]: row["state"] for row in rows(sandbox, workdir)}
    assert states == {first.name: "running", second.name: "stopped"}
    Path("go").touch()
    wait_until((first / "result.json").exists)
    assert result_of(first)["outcome"] == "completed"


@pytest.mark.slurm
def test_a_sweep_is_cancelled_with_the_runs_that_were_started_again_by_themselves(on: Ask, workdir: Path) -> None:
    script(workdir, "import os, sys\n" + "if os.environ['LAUNCHER_ATTEMPT'] == '0': sys.exit(1)\n" + SAVES_SLOWLY)
    assert on("-m", *ONE_RANK, "seed=1,2", "wait=true").returncode == 1
    first = runs_that("result.json")[0]
    assert on("resume", first.name).returncode == 0
    wait_until(lambda: runs_that("trains") == [first])
    assert on("cancel", first.parent.name, "--now").stdout == f"asked 1 runs of {first.parent.name} to end at once\n"
    wait_until((first / "result.json").exists)
    assert result_of(first)["cause"] == "cancelled"
