"""The commands answer wherever they are run: odd outputs, locales, links, directories; and signal nobody else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli.main import main
from launcher.records.removal import resumed_from
from launcher.records.rundir import RunDir
from launcher.records.submission import adopt
from tests.agents import agent_of, lasting
from tests.conftest import environment, launcher_command
from tests.made_records import make_open_run, make_run

READING = ("status", "why", "logs", "note", "report", "rm", "cancel", "resume", "rerun")


def local_run(path: Path, **submission: object) -> Path:
    make_open_run(path, "1")
    told = {"scheduler": "local", "host": os.uname().nodename, "time": 1.0, **submission}
    (path / "submission.json").write_text(json.dumps(told))
    return path


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize("place", ["~nobody-of-that-name/runs", "a-file"])
def test_a_runs_dir_that_cannot_be_is_one_line(
    workdir: Path, capsys: pytest.CaptureFixture[str], verb: str, place: str
) -> None:
    Path("a-file").touch()
    code = main([verb, *(["run"] if verb != "status" else []), f"runs_dir={place}"])
    shown = capsys.readouterr()
    assert code == (0 if verb == "status" and place != "a-file" else 2)
    assert len((shown.out + shown.err).strip().splitlines()) == 1


@pytest.mark.parametrize("verb", READING)
def test_an_empty_name_is_no_run(workdir: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    make_run(Path("runs/run"))
    assert main([verb, ""]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_run_is_the_same_behind_a_link(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = local_run(Path("disk/runs/run").absolute(), pid=os.getpid())
    Path("runs").symlink_to("disk/runs")
    with agent_of(run) as agent:
        (run / "submission.json").write_text(
            json.dumps({"scheduler": "local", "host": os.uname().nodename, "pid": agent.pid, "time": 1.0})
        )
        assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "running"


@pytest.mark.parametrize("what", ["run", "sweep"])
def test_a_stranger_who_has_an_agents_number_is_not_signalled(
    workdir: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    sweep = Path("runs/sweep").absolute()
    other, batch = sweep / "other", sweep / "batches/000"
    with lasting("sleep", "600") as stranger, agent_of(sweep / "run") as agent:
        local_run(sweep / "run", pid=agent.pid)
        local_run(other, pid=stranger.pid)
        batch.mkdir(parents=True)
        (sweep / "sweep.json").write_text(json.dumps({"runs": {"run": [], "other": []}}))
        (batch / "tasks.json").write_text(json.dumps({"tasks": [["run", "other"]], "slots": 1}))
        told = {"scheduler": "local", "host": os.uname().nodename, "pid": stranger.pid}
        (batch / "submission.json").write_text(json.dumps(told))
        assert main(["cancel", str(other if what == "run" else sweep)]) == (2 if what == "run" else 0)
        assert stranger.poll() is None
        assert agent.poll() is None if what == "run" else agent.wait(10) == -signal.SIGTERM
    assert capsys.readouterr().out == ("" if what == "run" else "asked 1 runs of sweep to save and stop\n")


def test_a_checkpoint_that_another_run_needs_stays_behind_a_link_too(workdir: Path) -> None:
    source, heir = Path("disk/runs/source").absolute(), Path("disk/runs/heir").absolute()
    Path("runs").symlink_to("disk/runs")
    make_run(source)
    make_open_run(heir, "1")
    plan = json.loads((heir / "plan.json").read_text())
    (heir / "plan.json").write_text(json.dumps({**plan, "resume": str(source / "checkpoints/000000010")}))
    linked = [RunDir(path) for path in Path("runs").absolute().iterdir()]
    assert resumed_from(RunDir(Path("runs/source").absolute()), linked) == RunDir(Path("runs/heir").absolute())


def test_a_job_that_was_not_written_down_is_found_behind_a_link_too(workdir: Path) -> None:
    run = make_open_run(Path("disk/runs/run").absolute(), "1")
    (run / "submission.json").unlink()
    Path("runs").symlink_to("disk/runs")
    adopt([RunDir(Path("runs/run").absolute())], {"7": str(run / "slurm/submission.sh")})
    assert json.loads((run / "submission.json").read_text())["job_id"] == "7"


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = f"{sys.executable} -m launcher {command}"
    return subprocess.run(
        ["sh", "-c", words], env=environment(**variables), capture_output=True, text=True, check=False
    )


def test_an_output_that_takes_nothing_is_one_line(workdir: Path) -> None:
    make_run(Path("runs/run"))
    full = shell("status > /dev/full")
    assert (full.returncode, len(full.stderr.splitlines())) == (1, 1) and "No space left" in full.stderr
    closed = shell("status >&-")
    assert (closed.returncode, closed.stderr) == (0, "")
    ended_early = shell("why run | true")
    assert ended_early.stderr == ""


def test_what_was_typed_and_printed_is_shown_in_any_locale(workdir: Path) -> None:
    run = make_run(Path("runs/run"))
    (run / "attempts/001/rank-0.log").write_bytes("gelöst \udcff\n".encode(errors="surrogateescape"))
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for command in ("note run gelöst", "note run", "logs run", "status", "why run", "report run -o page.html"):
        done = shell(command, **locale)
        assert (done.returncode, done.stderr) == (0, ""), command
    assert "gelöst" in shell("note run").stdout


@pytest.mark.train
def test_a_user_whom_the_system_does_not_know_can_use_it_all(workdir: Path) -> None:
    """As in a container that was started with a user's number alone."""
    make_run(Path("runs/run"))
    unknown = ["unshare", "--user", "--map-user=12345", "--map-group=12345", "env", *_UNSET]
    if subprocess.run([*unknown, "true"], check=False).returncode:
        pytest.skip("needs namespaces of users: this system does not let them be made")
    Path("train.py").write_text("print('trained')\n")
    started = ("task=script", "library=torchrun", "task.path=train.py")
    for words in (("note", "run", "seen"), ("status",), ("doctor",), (*started, "dry_run=true"), started):
        done = subprocess.run([*unknown, *launcher_command(*words)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), words
    assert json.loads(Path("runs/run/notes.jsonl").read_text())["user"] == "12345"


_UNSET = [word for name in ("LOGNAME", "USER", "LNAME", "USERNAME") for word in ("-u", name)]
