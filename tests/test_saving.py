"""Saving beside the training: what is saved, when, what happens when a disk fails or another attempt has begun."""

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.records import checkpoints
from launcher.records.files import read_json, read_json_lines, write_json
from launcher.train.course import Course, Schedule, StopTraining
from launcher.train.fence import Superseded
from launcher.train.rank import Rank
from tests.conftest import PATIENCE, Launch, environment, only_run, script
from tests.disks import fill, make_read_only, small_disk
from tests.test_local import SCRIPT
from tests.test_tracking import another_attempt


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's directory, in whose first attempt this process is the only rank."""
    (tmp_path / "attempts" / "000").mkdir(parents=True)
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def variables(run: Path, saves: "Path | None" = None) -> dict[str, str]:
    return {
        "LAUNCHER_RUN_DIR": str(run),
        "LAUNCHER_STOP_FILE": str(run / "attempts/000/stop"),
        "LAUNCHER_PROGRESS": str(run / "metrics.jsonl"),
        "LAUNCHER_CHECKPOINT_DIR": str(saves or run / "checkpoints"),
    }


def saved(directory: Path) -> list[int]:
    return [one.iteration for one in checkpoints.list_sealed(directory)]


class Loop:
    """A training whose state is a tensor that counts the iterations."""

    def __init__(self, rank: Rank, total: int = 1000, **checkpoint: Any) -> None:
        self.rank, self.state, self.done = rank, torch.zeros(1000), rank.iteration
        self.course = Course(rank, {"every": None, "minutes": None, **checkpoint}, None, total)

    def iterate(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.state += 1
            self.course.after_iteration(self.done, {"loss": 1 / self.done}, lambda: [self.state], self._save)

    def _save(self) -> None:
        self.rank.checkpoints.begin(self.done, {"state": self.state}, {"own": self.state})


@pytest.fixture
def busy() -> "Callable[[Rank], threading.Event]":
    """Keeps the writer of a rank busy, as a slow disk does, until the event is set."""

    def begin(rank: Rank) -> threading.Event:
        released = threading.Event()
        rank._threads.submit(released.wait, 60)
        return released

    return begin


@pytest.mark.parametrize(
    ("every", "done", "saves"),
    [(20, 0, [20, 40, 60]), (20, 57, [60]), (7, 0, [7, 14, 21, 28, 35, 42, 49, 56, 63]), (None, 0, [])],
)
def test_a_save_is_due_at_multiples_of_the_iterations(every: "int | None", done: int, saves: list[int]) -> None:
    schedule, begun = Schedule(every, None, done), list[int]()
    for iteration in range(done + 1, 64):
        if schedule.due(iteration):
            schedule.begun(iteration)
            begun.append(iteration)
    assert begun == saves


def test_a_save_is_due_after_the_minutes_or_the_iterations_whichever_comes_first() -> None:
    assert Schedule(20, 1e-9, 0).due(1)
    assert not Schedule(20, 1e9, 0).due(19)
    assert Schedule(20, 1e9, 0).due(20)
    assert not Schedule(None, 1e9, 0).due(1000)


def test_what_is_saved_is_the_state_after_the_iteration_and_the_training_goes_on_meanwhile(
    run: Path, busy: "Callable[[Rank], threading.Event]"
) -> None:
    rank = Rank("cpu")
    loop, released = Loop(rank, every=4), busy(rank)
    loop.iterate(6)
    assert saved(run / "checkpoints") == []
    released.set()
    rank.saver.finish()
    (found,) = checkpoints.list_sealed(run / "checkpoints")
    assert found.iteration == 4
    assert torch.equal(torch.load(found.state, weights_only=True)["state"], torch.full((1000,), 4.0))
    assert torch.equal(torch.load(found.part(0), weights_only=True)["own"], torch.full((1000,), 4.0))


def test_a_due_save_waits_for_the_one_that_is_under_way(run: Path, busy: "Callable[[Rank], threading.Event]") -> None:
    rank = Rank("cpu", checkpoint_keep=9)
    loop, released = Loop(rank, every=2), busy(rank)
    loop.iterate(7)
    released.set()
    rank.saver.finish()
    loop.iterate(8)
    rank.saver.finish()
    assert saved(run / "checkpoints") == [2, 8]


def test_the_last_save_is_waited_for(run: Path, busy: "Callable[[Rank], threading.Event]") -> None:
    rank = Rank("cpu")
    loop, released = Loop(rank, total=3), busy(rank)
    threading.Timer(0.2, released.set).start()
    loop.iterate(3)
    assert saved(run / "checkpoints") == [3]


def test_a_request_to_stop_saves_and_ends(run: Path) -> None:
    loop = Loop(Rank("cpu"))
    loop.iterate(3)
    (run / "attempts/000/stop").touch()
    with pytest.raises(StopTraining, match="asked to stop"):
        loop.iterate(9)
    assert saved(run / "checkpoints") == [4]


def test_the_best_by_a_metric_stays_and_its_value_is_in_the_seal(run: Path) -> None:
    rank = Rank("cpu", checkpoint_keep=1, checkpoint_best="-loss")
    for iteration, loss in enumerate((3.0, 1.0, 2.0, 4.0), start=1):
        rank.progress(iteration, loss=loss)
        assert rank.checkpoints.save(iteration, {"iteration": iteration})
    kept = checkpoints.list_sealed(run / "checkpoints")
    assert [(one.iteration, one.metrics) for one in kept] == [(2, {"loss": 1.0}), (4, {"loss": 4.0})]


def test_a_disk_that_fails_costs_a_checkpoint_and_a_line_and_the_next_save_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("LAUNCHER_CHECKPOINT_DIR", str(disk))
        rank = Rank("cpu")
        loop = Loop(rank, every=2)

        def until_saved(iteration: int) -> str:
            loop.iterate(iteration)
            rank.saver.finish()
            return "".join(line for line in capsys.readouterr().out.splitlines() if line.startswith("warning"))

        assert until_saved(2) == ""
        ballast = fill(disk, leave=4096)
        why = "No space left on device; the one before it stays"
        assert until_saved(4) == f"warning: checkpoint 000000004 was not saved: {why}"
        assert {path.name for path in disk.iterdir()} == {"000000002", "ballast"}
        ballast.unlink()
        assert until_saved(6) == ""
        make_read_only(disk, True)
        assert "checkpoint 000000008 was not saved: Read-only file system" in until_saved(8)
        make_read_only(disk, False)
        assert until_saved(10) == ""
        assert saved(disk) == [2, 6, 10]


def test_a_last_save_that_fails_is_said_in_words(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "file").touch()
    monkeypatch.setenv("LAUNCHER_CHECKPOINT_DIR", str(run / "file" / "checkpoints"))
    Loop(Rank("cpu"), total=3).iterate(3)
    said = capsys.readouterr().out
    assert "warning: checkpoint 000000003 was not saved: Not a directory" in said
    assert "warning: the training ends without its last checkpoint" in said


def test_an_error_that_is_no_disks_fault_is_not_passed_over(run: Path) -> None:
    rank = Rank("cpu")

    def broken(file: Any) -> None:
        raise ValueError("a bug")

    rank.saver.begin(1, lambda: {"state.pt": broken}, {})
    with pytest.raises(ValueError, match="a bug"):
        rank.saver.finish()


def test_an_attempt_that_is_not_the_newest_seals_nothing_and_ends(run: Path) -> None:
    rank = Rank("cpu")
    loop = Loop(rank, every=2)
    loop.iterate(2)
    rank.saver.finish()
    (run / "attempts/001").mkdir()
    with pytest.raises(Superseded, match="has taken over"):
        loop.iterate(9)
        rank.saver.finish()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["000000002"]


def test_an_attempt_that_is_overtaken_while_it_writes_does_not_seal(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, write = Rank("cpu"), checkpoints.Draft.write

    def overtaken(draft: checkpoints.Draft, name: str, save: Any) -> None:
        (run / "attempts/001").mkdir(exist_ok=True)
        write(draft, name, save)

    monkeypatch.setattr(checkpoints.Draft, "write", overtaken)
    with pytest.raises(Superseded):
        rank.checkpoints.save(1, {"iteration": 1})
    assert list((run / "checkpoints").iterdir()) == []


def test_an_older_attempt_begins_no_metrics(run: Path) -> None:
    (run / "attempts/001").mkdir()
    (run / "metrics.jsonl").write_text('{"iteration":1}\n')
    with pytest.raises(Superseded, match="attempt 001 has taken over"):
        Rank("cpu").progress(1)
    assert (run / "metrics.jsonl").read_text() == '{"iteration":1}\n'


def test_records_that_cannot_be_written_do_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk / "attempts/000").mkdir(parents=True)
        for name, value in variables(disk).items():
            monkeypatch.setenv(name, value)
        ballast = fill(disk)
        with Rank("cpu") as rank:
            rank.progress(1)
            rank.report("solved")
            ballast.unlink()
            rank.progress(2)
            rank.report("solved")
        said = capsys.readouterr().out
        assert "metrics.jsonl cannot be written (No space left on device)" in said
        assert "training.json cannot be written (No space left on device)" in said
        assert [line["iteration"] for line in read_json_lines(disk / "metrics.jsonl")] == [1, 2]
        assert (read_json(disk / "attempts/000/training.json") or {})["reason"] == "solved"


@pytest.fixture
def observer(run: Path) -> Any:
    """Of a library that writes checkpoints of its own."""
    from launcher.train.observed import Observer
    from launcher.train.timings import Timings

    checkpoint = {"every": 2, "minutes": None, "keep": 3, "best": "return_mean"}
    write_json(run / "plan.json", {"training": {"seed": 1, "checkpoint": checkpoint, "task": {"solved": None}}})
    return Observer("rsl_rl", "cpu", 8, Timings(None))


def test_a_librarys_own_checkpoint_is_copied_as_it_was_with_the_metric(run: Path, observer: Any) -> None:
    def save() -> Path:
        (run / "model.pt").write_bytes(b"weights")
        return run / "model.pt"

    for done in (1, 2):
        observer.after_iteration(done, {"return_mean": 5.0}, lambda: [], save)
    (run / "model.pt").write_bytes(b"other weights")
    observer.rank.saver.finish()
    (found,) = checkpoints.list_sealed(run / "checkpoints")
    assert (found.iteration, found.metrics) == (2, {"return_mean": 5.0})
    assert (found.path / "rsl_rl.pt").read_bytes() == b"weights"


def test_a_library_that_cannot_save_goes_on_training(
    run: Path, observer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> Path:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    for done in (1, 2, 3):
        observer.after_iteration(done, {}, lambda: [], fails)
    observer.rank.saver.finish()
    assert "checkpoint 000000002 was not saved: Disk quota exceeded" in capsys.readouterr().out

    with small_disk(run / "disk") as disk:
        fill(disk)

        def by_torch() -> Path:
            torch.save({"weights": torch.zeros(10_000)}, disk / "model.pt")
            return disk / "model.pt"

        observer.after_iteration(4, {}, lambda: [], by_torch)
        observer.rank.saver.finish()
    assert "checkpoint 000000004 was not saved" in capsys.readouterr().out


RANKS = """\
import os, resource
import torch
from launcher.train import Rank
from launcher.train.course import Course

with Rank("cpu", checkpoint_keep=1) as rank:
    # the clock of rank 1 says that a save is always due, and does not count
    course = Course(rank, {"every": None if rank.rank else 2, "minutes": 1e-9 if rank.rank else None}, None, 40)
    state, done = torch.zeros(100), 0

    def iterate():
        global done
        done += 1
        state.add_(1)
        own = {"own": torch.full((10_000,), float(done))}
        course.after_iteration(done, {}, lambda: [state], lambda: rank.checkpoints.begin(done, {"state": state}, own))

    iterate()
    assert rank.saver.idle
    iterate()
    assert not rank.saver.idle
    rank.saver.finish()
    if rank.rank == 1:  # the kernel lets it write no file that is as large as its own state
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    while rank.saver.saved:
        iterate()
    print(f"gave up before iteration {done}", flush=True)
    if rank.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    while done < 40:
        iterate()
    rank.report("finished")
"""


@pytest.mark.train
def test_a_save_that_fails_on_one_rank_is_given_up_by_all_and_rank_0_says_why(workdir: Path) -> None:
    script(workdir, RANKS)
    (workdir / "attempts" / "000").mkdir(parents=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "train it.py"]
    done = subprocess.run(
        command,
        env=environment(**variables(workdir)),
        capture_output=True,
        text=True,
        timeout=PATIENCE * 120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("was not saved: File too large") == done.stdout.count("warning")
    assert 1 <= done.stdout.count("warning") <= 2  # the next may have begun before the limit went
    assert len(set(re.findall(r"gave up before iteration \d+", done.stdout))) == 1  # both at once
    directory = workdir / "checkpoints"
    assert os.listdir(directory) == ["000000040"]
    newest = checkpoints.newest_whole(directory)
    assert newest is not None and torch.load(newest.part(1), weights_only=True)["own"][0] == 40


DIES = """\
import os
from launcher.train import Rank
with Rank("cpu") as rank:
    state, _ = rank.checkpoints.load(rank.device) or ({"iteration": 0}, None)
    for iteration in range(state["iteration"] + 1, 21):
        if iteration == 14 and os.environ["LAUNCHER_ATTEMPT"] == "0":
            os.kill(os.getpid(), 9)
        rank.progress(iteration, attempt=int(os.environ["LAUNCHER_ATTEMPT"]))
        if iteration % 5 == 0:
            rank.checkpoints.save(iteration, {"iteration": iteration})
"""


@pytest.mark.train
def test_after_a_killed_attempt_the_metrics_have_every_iteration_once(launch: Launch, workdir: Path) -> None:
    script(workdir, DIES)
    assert launch(*SCRIPT, "retry.crash=0").returncode == 1
    run = only_run(workdir)
    assert [line["iteration"] for line in read_json_lines(run / "metrics.jsonl")] == list(range(1, 14))
    another_attempt(run)
    lines = [(line["iteration"], line["attempt"]) for line in read_json_lines(run / "metrics.jsonl")]
    assert lines == [(iteration, int(iteration > 10)) for iteration in range(1, 21)]
