"""How long torchrun leaves the ranks of a node when one of them has ended badly."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, environment, launcher_command, only_run, script
from tests.test_local import SCRIPT, processes_of, wait_until

pytestmark = pytest.mark.train

TWO = (*SCRIPT, "cluster.nproc_per_node=2", "retry.in_job=false", "retry.crash=0")
WAITS = """\
import os, signal, time
from pathlib import Path
if os.environ["RANK"] == "1":
    while not Path("deaf").exists():
        time.sleep(0.05)
    Path("killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, lambda *_: print("told to end", flush=True))
Path("deaf").touch()
while True:
    time.sleep(1)
"""
SAVES = """\
import os, signal, time
from pathlib import Path
def save(*_):
    time.sleep(3)
    Path("saved").touch()
    os._exit(0)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, save)
Path(f"ready-{os.environ['RANK']}").touch()
while True:
    time.sleep(1)
"""


def test_a_rank_that_waits_for_a_killed_one_is_told_and_ended_within_seconds(workdir: Path) -> None:
    """As under NCCL, where no signal gets through to a rank that waits: torch would give it 30 s."""
    script(workdir, WAITS)
    command = subprocess.Popen(launcher_command(*TWO), cwd=workdir, env=environment(), stdout=subprocess.DEVNULL)
    wait_until((workdir / "killed").exists)
    killed = time.monotonic()
    assert command.wait(PATIENCE * 60) == 1
    assert time.monotonic() - killed < 25
    assert "told to end" in (only_run(workdir) / "attempts/000/rank-0.log").read_text()
    assert not processes_of(only_run(workdir))


def test_a_rank_that_saves_keeps_its_time_when_another_has_died_of_the_warning(workdir: Path) -> None:
    script(workdir, SAVES)
    command = subprocess.Popen(launcher_command(*TWO), cwd=workdir, env=environment(), stdout=subprocess.DEVNULL)
    wait_until(lambda: all((workdir / f"ready-{rank}").exists() for rank in (0, 1)))
    command.send_signal(signal.SIGINT)
    assert command.wait(PATIENCE * 60) == 130
    assert (workdir / "saved").exists()
