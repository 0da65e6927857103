"""Directories on a node's disk that end with their process, however that ends."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.node import scratch, temporary
from tests.conftest import environment


def left_by_a_killed_one(place: Path) -> Path:
    """What an agent leaves that is killed with -9 while its ranks run."""
    with subprocess.Popen([sys.executable, "-c", HOLD, place], env=environment(), stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None and agent.stdout.read(1) == b"."
        agent.kill()
    (left,) = place.iterdir()
    return left


HOLD = """\
import signal, sys
from launcher.node.scratch import scratch_directory
with scratch_directory(sys.argv[1], "run-000-0") as path:
    (path / "data").write_bytes(b"x" * 4096)
    print(".", end="", flush=True)
    signal.pause()
"""


def swept(place: Path) -> None:
    """Another agent comes, and looks to the end for what others have left."""
    with scratch.scratch_directory(str(place), "run-001-0") as path:
        assert path is not None and path.is_dir() and path.stat().st_mode & 0o077 == 0
        for thread in threading.enumerate():
            if thread.name == temporary.CLEANER:
                thread.join()
    assert not path.exists()


def test_what_a_killed_agent_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = left_by_a_killed_one(tmp_path)
    assert (left / "data").exists()
    swept(tmp_path)
    assert not any(tmp_path.iterdir())


def test_what_somebody_holds_stays(tmp_path: Path) -> None:
    with scratch.scratch_directory(str(tmp_path), "other-000-0") as held:
        assert held is not None
        (held / "data").touch()
        swept(tmp_path)
        assert (held / "data").exists()
    assert not any(tmp_path.iterdir())


def _another_host(left: Path) -> None:
    (left / ".launcher").write_text("elsewhere")


def _no_mark(left: Path) -> None:
    (left / ".launcher").unlink()


def _another_name(left: Path) -> None:
    left.rename(left.with_name("mine"))


@pytest.mark.parametrize("change", [_another_host, _no_mark, _another_name])
def test_what_is_not_certainly_ours_stays(tmp_path: Path, change: Callable[[Path], None]) -> None:
    change(left_by_a_killed_one(tmp_path))
    swept(tmp_path)
    (left,) = tmp_path.iterdir()
    assert (left / "data").exists()


def test_a_disk_without_locks_keeps_nobody_from_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(temporary.fcntl, "flock", refuse)
    swept(tmp_path)
    assert not any(tmp_path.iterdir())
