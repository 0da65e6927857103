"""``note``, ``rm`` and ``prune``: what is remarked on runs, and how those go that nobody needs any more."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher import load_run
from launcher.cli.main import main
from launcher.records import removal, rundir
from launcher.records.checkpoints import seal_in_place
from launcher.records.files import write_json
from launcher.records.removal import Removal
from launcher.records.result import COMPLETED, FAILED, Result
from launcher.records.rundir import RunDir
from launcher.records.sweepdir import SweepDir
from tests.agents import agent_of
from tests.conftest import Launch, only_run
from tests.test_local import read_all

DAY = 86400
Make = Callable[..., RunDir]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes runs in ``runs/``; they have ended, ten days ago."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()

    def make(name: str, value: float | None = 1.0, *, outcome: str = COMPLETED, days: float = 10, resume: str = "",
             within: str = "", task: str = "ant", best: str | None = None) -> RunDir:  # fmt: skip
        run = rundir.create(tmp_path / "runs" / within, name, code=tmp_path / "code")
        training = {"task": {"name": task}, "library": "rsl_rl", "checkpoint": {"best": best}}
        write_json(run.plan, {"run_id": name, "resume": resume, "training": training})
        write_json(run.submission, {"scheduler": "local", "host": os.uname().nodename, "pid": 2**22 + 1})
        metrics = {} if value is None else {"return_mean": value, "loss": -value}
        if outcome:
            Result(outcome, "max_iterations", metrics=metrics).write(run.result)
        for path in (run.plan, run.submission, run.result):
            if path.exists():
                os.utime(path, (time.time(), time.time() - days * DAY))
        return run

    return make


def make_sweep(make: Make, name: str, values: list[float], **options: Any) -> SweepDir:
    runs = [make(f"{name}-{number:04}", value, within=name, **options) for number, value in enumerate(values)]
    sweep = SweepDir(runs[0].path.parent)
    write_json(sweep.record, {"sweep": {"metric": "loss"}, "runs": {run.run_id: ["seed=1"] for run in runs}})
    return sweep


def names() -> list[str]:
    return sorted(path.name for path in Path("runs").iterdir())


Said = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs a command; returns its output, or, where it is expected to be refused, the reason."""

    def say(*arguments: str, code: int = 0) -> str:
        assert main(list(arguments)) == code, capsys.readouterr()
        out, err = capsys.readouterr()
        return err if code else out

    return say


def test_a_note_is_kept_with_the_run_and_shown_where_one_looks_at_it(make: Make, say: Said) -> None:
    run = make("a-run")
    assert "reward was wrong (" in say("note", "a-run", "the", "reward was <b>wrong</b>, reward was wrong")
    say("note", "a-run", "second\nline")
    assert [one.text for one in load_run("a-run").notes][1] == "second\nline"
    assert say("note", "a-run").count("\n") == 2
    assert "note of " in (story := say("why", "a-run")) and "second line" in story
    say("report", "a-run", "-o", "x.html")
    page = Path("x.html").read_text()
    assert "<b>wrong" not in page and "second line" in page
    assert (run.path / "notes.jsonl").stat().st_mode & 0o077 == 0
    assert "no run 'nix'" in say("note", "nix", "text", code=2)


def test_a_note_on_a_sweep_is_the_sweeps(make: Make, say: Said) -> None:
    sweep = make_sweep(make, "a-sweep", [1.0, 2.0])
    say("note", "a-sweep", "too few seeds")
    assert (sweep.path / "notes.jsonl").exists()
    say("report", "a-sweep", "-o", "x.html")
    assert "too few seeds" in Path("x.html").read_text()


def test_a_run_goes_with_all_it_has_and_nothing_else_does(make: Make, say: Said) -> None:
    run, other = make("one"), make("two")
    (run.checkpoints / "data").write_bytes(b"x" * 3_000_000)
    (run.path / "link").symlink_to(other.path, target_is_directory=True)
    assert "removed 2.9 MiB" in say("rm", "one", "--yes")
    assert names() == ["two"] and other.secret.exists()


def test_nobody_is_asked_without_a_terminal(make: Make, say: Said) -> None:
    make("one")
    assert "add --yes" in say("rm", "one", code=2)
    assert names() == ["one"]


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", ["one"]), (b"\n", ["one"]), (b"y\n", [])])
def test_a_person_is_asked(make: Make, answer: bytes, left: list[str]) -> None:
    make("one")
    pid, terminal = pty.fork()
    if pid == 0:
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - of the child, to its end
        code = main(["rm", "one"])
        sys.stdout.flush()
        os._exit(code)
    os.write(terminal, answer)
    assert "remove all of it? [y/N]" in read_all(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert names() == left


def test_what_runs_or_might_run_is_not_removed(make: Make, say: Said) -> None:
    running, elsewhere = make("running", outcome=""), make("elsewhere", outcome="")
    write_json(elsewhere.submission, {"scheduler": "local", "host": "another", "pid": 1})
    with agent_of(running.path) as agent:
        write_json(running.submission, {"scheduler": "local", "host": os.uname().nodename, "pid": agent.pid})
        assert "it is running; stop it with" in say("rm", "running", "--yes", code=2)
        assert "nobody knows whether it runs" in say("rm", "elsewhere", "--yes", code=2)
        say("prune", "--older", "1d", "--yes")
    assert names() == ["elsewhere", "running"]
    assert "removed" in say("rm", "running", "--yes")  # it is lost now


@pytest.mark.parametrize("damage", ["plan names another", "no secret", "a link"])
def test_a_directory_that_is_no_run_of_ours_is_not_removed(make: Make, say: Said, damage: str) -> None:
    run = make("one")
    if damage == "plan names another":
        run.path.rename("runs/two")
    elif damage == "no secret":
        run.secret.unlink()
    else:
        Path("elsewhere").mkdir()
        run.path.rename("elsewhere/one")
        Path("runs/one").symlink_to(Path("elsewhere/one").absolute(), target_is_directory=True)
    (name,) = names()
    answer = say("rm", f"runs/{name}" if damage == "no secret" else name, "--yes", code=2)
    assert "is not removed" in answer
    assert names() == [name] and Path("runs", name, "plan.json").exists()
    say("prune", "--older", "1d", "--yes")
    assert names() == [name]


def test_a_run_from_which_another_is_to_start_stays_until_that_has_a_checkpoint(make: Make, say: Said) -> None:
    first = make("first")
    checkpoint = first.checkpoints / "000000001"
    checkpoint.mkdir()
    second = make("second", outcome=FAILED, resume=str(checkpoint), days=0)
    assert "run second starts from its checkpoint" in say("rm", "first", "--yes", code=2)
    say("prune", "--older", "5d", "--yes")
    assert names() == ["first", "second"]
    own = second.checkpoints / "000000002"
    own.mkdir()
    seal_in_place(own, 2, 1)
    say("prune", "--older", "5d", "--yes")
    assert names() == ["second"]
    third = make("third", outcome=FAILED, resume=str(own))
    say("rm", "second", third.run_id, "--yes")
    assert names() == []


def test_prune_shows_what_would_go_and_removes_it_when_told(make: Make, say: Said) -> None:
    for name, days in (("old", 31), ("new", 29)):
        make(name, days=days)
    shown = say("prune", "--older", "30d")
    assert "old" in shown and "new" not in shown and "nothing is removed: add --yes" in shown
    assert names() == ["new", "old"]
    say("prune", "--older", "30d", "--yes")
    assert names() == ["new"]
    assert "nothing to remove" in say("prune", "--older", "30d")
    assert "is no age" in say("prune", "--older", "30", code=2)


def test_the_best_stay(make: Make, say: Said) -> None:
    for name, value, task, best in (
        ("a", 1.0, "ant", None), ("b", 3.0, "ant", None), ("c", 2.0, "ant", None), ("h", 1.0, "hopper", None),
        ("l1", 5.0, "lossy", "-loss"), ("l2", 4.0, "lossy", "-loss"), ("n", None, "nothing", None),
    ):  # fmt: skip
        make(name, value, task=task, best=best)
    make("new", 2.5, days=0)
    sweep = make_sweep(make, "s", [3.0, 1.0, 2.0])  # by its metric, the negative of these
    say("prune", "--older", "5d", "--keep-best", "--yes")
    assert names() == ["b", "h", "l1", "new", "s"]
    assert sweep.run_paths() == [sweep.run_path(1)]
    assert sorted(path.name for path in sweep.path.iterdir()) == ["s-0001", "sweep.json"]
    assert len(json.loads(say("status", "s", "--json"))) == 1


def test_a_sweep_goes_as_a_whole_and_not_while_a_run_of_it_is_young_or_runs(make: Make, say: Said) -> None:
    make_sweep(make, "s", [1.0, 2.0])
    young = make_sweep(make, "young", [1.0, 2.0])
    os.utime(RunDir(young.run_path(1)).result)
    say("prune", "--older", "5d", "--yes")
    assert names() == ["young"]
    say("rm", "young-0000", "--yes")
    assert young.run_paths() == [young.run_path(1)]
    say("rm", "young", "--yes")
    assert names() == []


def test_a_removal_that_is_cut_off_leaves_no_half_run_and_is_finished_later(
    make: Make, say: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("one")

    def cut_off(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", cut_off)
        with pytest.raises(KeyboardInterrupt):
            removal.remove(Removal((run,)))
    assert names() == [".one.removed"]
    assert "no runs" in say("status")
    say("prune", "--older", "1d")
    assert names() == []


def test_of_several_runs_those_that_can_be_cancelled_are(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("over")
    running = make("running", outcome="")
    with agent_of(running.path) as agent:
        write_json(running.submission, {"scheduler": "local", "host": os.uname().nodename, "pid": agent.pid})
        assert main(["cancel", "over", "nix", "running"]) == 2
        assert agent.wait(10) == -signal.SIGTERM
    told = capsys.readouterr()
    assert told.out == "asked running to save and stop\n"
    assert "run over is not running" in told.err and "no run 'nix'" in told.err and told.err.count("\n") == 1


def test_a_run_whose_commands_nobody_has_typed_can_go(launch: Launch, workdir: Path) -> None:
    assert launch("commands", "cluster.hosts=[a,b]").returncode == 0
    run = only_run(workdir)
    assert launch("rm", run.name, "--yes").returncode == 0 and not run.exists()
