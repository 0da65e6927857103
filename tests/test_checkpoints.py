"""Checkpoints as files: whole or passed over with a reason, the last and the best kept, a whole one after any death."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.records import checkpoints
from launcher.records.checkpoints import Checkpoint, Draft
from tests.conftest import environment
from tests.test_local import wait_until

PARTS = (checkpoints.STATE, checkpoints.part_name(0), checkpoints.part_name(1))


def draft(directory: Path, iteration: int, attempt: int = 0) -> Draft:
    """One whose files are written."""
    made = Draft(directory, iteration, attempt)
    for name in PARTS:
        made.write(name, lambda file: file.write(b"state" * iteration))
    return made


def save(directory: Path, iteration: int, metrics: "dict[str, Any] | None" = None, attempt: int = 0) -> Checkpoint:
    made = draft(directory, iteration, attempt)
    made.seal(2, PARTS, metrics)
    found = checkpoints.read(made.publish())
    assert found is not None
    return found


def iterations(directory: Path) -> list[int]:
    return [found.iteration for found in checkpoints.list_sealed(directory)]


def test_a_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    found = save(tmp_path, 20, {"return_mean": 1.5})
    assert (found.iteration, found.world_size, found.metrics) == (20, 2, {"return_mean": 1.5})
    assert found.state.read_bytes() == b"state" * 20 and found.part(1).is_file()
    assert json.loads((found.path / "seal.json").read_text())["version"] == 1
    assert checkpoints.problem_of(found.path) == ""


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    for iteration, value in ((20, 1.0), (40, 9.0), (60, 3.0), (80, 4.0), (100, 5.0)):
        save(tmp_path, iteration, {"return_mean": value})
        checkpoints.prune(tmp_path, 2, "return_mean")
    assert sorted(os.listdir(tmp_path)) == ["000000040", "000000080", "000000100"]
    checkpoints.prune(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["000000080", "000000100"]


@pytest.mark.parametrize(
    ("metric", "values", "iteration"),
    [
        ("m", [1.0, 3.0, 2.0], 2),
        ("-m", [1.0, 3.0, 2.0], 1),
        ("m", [3.0, 3.0, 2.0], 2),
        ("m", [None, 1.0, None], 2),
        ("m", [float("nan"), 1.0, float("inf")], 2),
        ("m", ["much", 1, None], 2),
        ("m", [None, None, None], None),
        ("other", [1.0, 2.0, 3.0], None),
    ],
)
def test_the_best_has_the_largest_or_the_smallest_value_and_of_equals_is_the_newest(
    tmp_path: Path, metric: str, values: list[Any], iteration: "int | None"
) -> None:
    for number, value in enumerate(values, start=1):
        save(tmp_path, number, {"m": value})
    found = checkpoints.best(checkpoints.list_sealed(tmp_path), metric)
    assert (found and found.iteration) == iteration


def test_the_same_iteration_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 20)
    again = Draft(tmp_path, 20)
    again.write(checkpoints.STATE, lambda file: file.write(b"other"))
    again.seal(1, [checkpoints.STATE])
    again.publish()
    (found,) = checkpoints.list_sealed(tmp_path)
    assert (found.world_size, found.state.read_bytes(), found.part(1).exists()) == (1, b"other", False)
    assert os.listdir(tmp_path) == ["000000020"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda one: os.truncate(one.part(1), 10), "is damaged: rank-1.pt has 10 bytes instead of 200"),
        (lambda one: one.state.write_bytes(b"X" * 200), "is damaged: state.pt is not what was written"),
        (lambda one: one.part(1).unlink(), "is damaged: rank-1.pt is missing"),
        (lambda one: os.truncate(one.path / "seal.json", 50), "is damaged: its seal cannot be read"),
        (lambda one: (one.path / "seal.json").unlink(), "was never finished"),
        (lambda one: change_seal(one, version=2), "has version 2, and version 1 is read here"),
        (lambda one: change_seal(one, iteration=50), "is damaged: its seal is not what was written"),
    ],
)
def test_what_cannot_be_used_is_passed_over_for_the_one_before_with_the_reason(
    tmp_path: Path, damage: Any, reason: str
) -> None:
    save(tmp_path, 20)
    damage(save(tmp_path, 40))
    draft(tmp_path, 60)
    choice = checkpoints.choose(tmp_path)
    assert choice.checkpoint is not None and choice.checkpoint.iteration == 20
    assert choice.passed_over == ("checkpoint 000000060 was never finished", f"checkpoint 000000040 {reason}")


def change_seal(one: Checkpoint, **values: Any) -> None:
    path = one.path / "seal.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_nothing_is_said_of_what_is_older_than_the_one_that_is_taken(tmp_path: Path) -> None:
    draft(tmp_path, 10)
    os.truncate(save(tmp_path, 20).state, 1)
    save(tmp_path, 40)
    choice = checkpoints.choose(tmp_path)
    assert (choice.checkpoint and choice.checkpoint.iteration, choice.passed_over) == (40, ())
    assert checkpoints.choose(tmp_path / "nowhere") == checkpoints.Choice(None, ())


@pytest.fixture(scope="module")
def saved_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints")
    save(directory, 20, {"return_mean": 1.0})
    save(directory, 40, {"return_mean": 2.0})
    return directory


@settings(max_examples=150)
@given(data=st.data())
def test_whatever_byte_is_changed_cut_off_or_taken_out_the_one_before_is_taken(
    saved_twice: Path, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(shutil.copytree(saved_twice, Path(name, "checkpoints")))
        newest = directory / f"{40:09}"
        file = newest / data.draw(st.sampled_from([*PARTS, "seal.json"]))
        before, seal = file.read_bytes(), (newest / "seal.json").read_text()
        place = data.draw(st.integers(0, len(before) - 1))
        changed = bytes([data.draw(st.integers(0, 255).filter(lambda byte: byte != before[place]))])
        rest = data.draw(st.sampled_from([b"", before[place + 1 :], changed + before[place + 1 :]]))
        file.write_bytes(before[:place] + rest)
        found = checkpoints.newest_whole(directory)
        assert found is not None
        if found.iteration == 40:  # the seal has other blanks, and says the same
            assert file.name == "seal.json" and json.loads(file.read_text()) == json.loads(seal)
        else:
            assert found.iteration == 20


def test_a_save_that_dies_leaves_the_checkpoint_before_and_its_litter_goes_with_the_next(tmp_path: Path) -> None:
    save(tmp_path, 20)
    draft(tmp_path, 40).seal(2, PARTS)  # all is there but the name
    assert checkpoints.newest_whole(tmp_path) == checkpoints.read(tmp_path / "000000020")
    save(tmp_path, 60)
    checkpoints.prune(tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == ["000000020", "000000060"]


def test_an_older_attempt_that_still_writes_does_not_write_into_the_checkpoint_of_the_newer_one(tmp_path: Path) -> None:
    newer = draft(tmp_path, 20, attempt=1)
    Draft(tmp_path, 20, attempt=0).write(checkpoints.STATE, lambda file: file.write(b"of the older"))
    newer.seal(2, PARTS)
    newer.publish()
    found = checkpoints.newest_whole(tmp_path)
    assert found is not None and found.state.read_bytes() == b"state" * 20


def test_a_file_that_a_rank_did_not_write_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        draft(tmp_path, 20).seal(4, [*PARTS, checkpoints.part_name(2)])
    assert iterations(tmp_path) == []


SAVES = """\
import sys
from pathlib import Path
from launcher.records import checkpoints
directory, names = Path(sys.argv[1]), ["state.pt", "rank-0.pt", "rank-1.pt"]
newest = checkpoints.newest_whole(directory)
iteration = newest.iteration if newest else 0
while True:
    iteration += 1
    draft = checkpoints.Draft(directory, iteration)
    for name in names:
        draft.write(name, lambda file: file.write(f"{name} {iteration} ".encode() * 10_000))
    draft.seal(2, names, {"return_mean": float(iteration % 7)})
    draft.publish()
    checkpoints.prune(directory, 2, "return_mean")
"""


def test_killed_at_any_moment_it_leaves_nothing_but_whole_checkpoints_and_loses_none(tmp_path: Path) -> None:
    moments, done = random.Random(5), 0

    def goes_on() -> bool:
        return max(iterations(tmp_path), default=0) > done

    for _ in range(12):
        process = subprocess.Popen([sys.executable, "-c", SAVES, tmp_path], env=environment())
        wait_until(goes_on)
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        sealed = checkpoints.list_sealed(tmp_path)
        assert [checkpoints.problem_of(one.path) for one in sealed] == [""] * len(sealed)
        newest = checkpoints.newest_whole(tmp_path)
        assert newest is not None and newest.iteration > done
        done = newest.iteration
        assert newest.part(1).read_bytes() == f"rank-1.pt {done} ".encode() * 10_000
        assert len(sealed) <= 4  # two, the best, and one that was to be removed
