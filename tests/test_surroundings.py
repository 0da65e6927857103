"""The commands answer wherever they are run: odd outputs, locales, links, directories; and signal nobody else."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.cli.main import main
from tests.conftest import environment
from tests.made_records import make_open_run, make_run

READING = ("status", "why", "logs", "note", "report", "rm", "cancel", "resume", "rerun")


@contextmanager
def agent_of(records: Path) -> Generator[subprocess.Popen[bytes]]:
    """A process that looks like the agent of a run or of a sweep's batch."""
    words = [sys.executable, "-c", "import time\ntime.sleep(600)", "launcher.node", str(records)]
    with subprocess.Popen(words) as process:
        yield process
        process.kill()


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


def test_to_cancel_a_run_that_waits_for_its_turn_does_not_stop_those_before_it(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = Path("runs/sweep/queue.json").absolute()
    with agent_of(queue) as agent:
        local_run(Path("runs/sweep/run"), pid=agent.pid, queue=str(queue))
        assert main(["cancel", "runs/sweep/run"]) == 2
        assert agent.poll() is None
    assert "cancel sweep stops the whole sweep" in capsys.readouterr().err


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


def test_ctrl_c_is_no_traceback(workdir: Path) -> None:
    make_run(Path("runs/run"))
    words = [sys.executable, "-m", "launcher", "status", "--watch"]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None and watching.stderr is not None
        watching.stdout.read(1)
        watching.send_signal(signal.SIGINT)
        assert b"Traceback" not in watching.stderr.read()
