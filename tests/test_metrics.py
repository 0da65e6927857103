"""metrics.jsonl: each iteration once over all attempts, whole lines in order, whatever the disk does."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.records.files import read_json_lines
from launcher.records.metrics import MetricsLog
from launcher.records.rundir import RunDir
from tests.disks import fill, make_read_only, small_disk


class Writer(MetricsLog):
    """The writer of an attempt, with what it said."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        super().__init__(path, lambda: None, self.said.append)

    def write(self, *iterations: int) -> None:
        for iteration in iterations:
            self.append({"iteration": iteration, "by": id(self)})


def recorded(path: Path) -> list[int]:
    """Whole lines only: half a line fails the test."""
    return [json.loads(line)["iteration"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_an_attempt_that_goes_on_from_a_checkpoint_leaves_no_iteration_doubled_and_none_out(path: Path) -> None:
    Writer(path).write(*range(1, 51))
    Writer(path).write(*range(41, 61))
    assert recorded(path) == list(range(1, 61))


def test_half_a_line_of_a_killed_attempt_goes_and_lines_without_an_iteration_stay(path: Path) -> None:
    path.write_text('{"note":"mine"}\n{"iteration":1}\n{"iteration":2,"los')
    Writer(path).write(2)
    assert list(read_json_lines(path))[:2] == [{"note": "mine"}, {"iteration": 1}]
    assert path.read_text().count("\n") == 3


def test_an_older_attempt_that_still_lives_writes_nowhere(path: Path) -> None:
    older, newer = Writer(path), Writer(path)
    older.write(1, 2, 3)
    newer.write(3, 4)
    older.write(4, 5, 6)
    newer.write(5)
    records = list(read_json_lines(path))
    assert [record["iteration"] for record in records] == [1, 2, 3, 4, 5]
    assert [record["by"] == id(newer) for record in records] == [False, False, True, True, True]


def test_an_older_attempt_that_has_written_nothing_yet_may_not_begin(path: Path) -> None:
    class Superseded(Exception): ...

    def check() -> None:
        raise Superseded

    path.write_text('{"iteration":1}\n')
    with pytest.raises(Superseded):
        MetricsLog(path, check, print).append({"iteration": 1})
    assert recorded(path) == [1]


def test_on_a_full_disk_lines_wait_and_none_is_lost_torn_or_doubled(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path, padding = disk / "metrics.jsonl", "x" * 100
        writer = Writer(path)
        writer.append({"iteration": 1, "padding": padding})
        ballast = fill(disk)
        for iteration in range(2, 200):
            writer.append({"iteration": iteration, "padding": padding})
        assert not path.read_bytes().endswith(b"\n")  # the disk took a part of a line, up to its last page
        assert len(writer.said) == 1 and "No space left on device" in writer.said[0]
        ballast.unlink()
        writer.append({"iteration": 200, "padding": padding})
        assert recorded(path) == list(range(1, 201))
        ballast = fill(disk)
        for iteration in range(201, 300):
            writer.append({"iteration": iteration, "padding": padding})
        assert len(writer.said) == 2  # one for each time that it began to fail
        ballast.unlink()
        writer.finish()
        assert (recorded(path), len(writer.said)) == (list(range(1, 300)), 2)


def test_what_a_full_disk_does_not_take_until_the_end_is_said_to_be_lost(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        writer = Writer(disk / "metrics.jsonl")
        fill(disk)
        writer.write(1, 2, 3)
        writer.finish()
        assert writer.said[-1] == "3 lines of metrics.jsonl could not be written"


def test_on_a_read_only_disk_the_old_file_stays_until_the_new_one_can_be_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "metrics.jsonl"
        path.write_text('{"iteration":1}\n{"iteration":2}\n{"iteration":3}\n')
        writer = Writer(path)
        make_read_only(disk, True)
        writer.write(3, 4)
        assert recorded(path) == [1, 2, 3]
        assert len(writer.said) == 1 and "Read-only file system" in writer.said[0]
        make_read_only(disk, False)
        writer.write(5)
        assert recorded(path) == [1, 2, 3, 4, 5]
        assert [record.get("by") for record in read_json_lines(path)][2:] == [id(writer)] * 3
        writer.finish()


def test_a_file_that_has_become_stale_is_opened_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake in the place of the kernel: only the server of a network file system makes a descriptor stale."""
    import errno
    import os

    writer, stale = Writer(path), True
    writer.write(1)
    first, write = writer._descriptor, os.write

    def write_unless_stale(descriptor: int, data: Any) -> int:
        if stale and descriptor == first:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_unless_stale)
    writer.write(2)
    stale = False
    writer.write(3)
    assert recorded(path) == [1, 2, 3]
    assert len(writer.said) == 1 and "Stale" in writer.said[0]


@pytest.mark.parametrize("read_before", [False, True])
def test_the_tracker_misses_nothing_when_the_file_is_replaced_by_a_shorter_one(
    tmp_path: Path, read_before: bool
) -> None:
    from launcher.train.tracker import NewMetrics

    run = RunDir(tmp_path)
    Writer(run.metrics).write(*range(1, 51))
    metrics, seen = NewMetrics(run), list[int]()
    if read_before:
        seen = [record["iteration"] for record in metrics.read()]
        assert seen == list(range(1, 51))
    writer = Writer(run.metrics)
    for iteration in range(21, 61):
        writer.write(iteration)
        seen += [record["iteration"] for record in metrics.read()]
    after = seen[50:] if read_before else seen
    assert after == list(range(1, 61))  # all of the new file; what the tracked run has it does not take again
