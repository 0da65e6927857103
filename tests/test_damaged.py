"""Records that are damaged, or another version's, cost what they would have told, never an answer."""

import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import main
from tests.agents import agent_of
from tests.made_records import make_open_run, make_run

Damage = Callable[[dict[str, Any], str], object]
DAMAGES: dict[str, Damage | str] = {
    "lacks": lambda record, key: record.pop(key),
    "null": lambda record, key: record.update({key: None}),
    **{f"only {text!r}": text for text in ("", "{", "[]", "null", '"x"', "5", "\0\udcff")},
}
COMMANDS = (
    ["status"], ["status", "run"], ["status", "--json"], ["why", "run"], ["why", "run", "--json"], ["logs", "run"],
    ["logs", "run", "--all"], ["logs", "run", "--node", "0"], ["note", "run"], ["report", "run", "-o", "report.html"],
    ["resume", "run"],
)  # fmt: skip


@contextmanager
def made(kind: str) -> Generator[Path]:
    """A run of this machine that has ended, or that goes on."""
    path = Path("runs/run").absolute()
    if kind == "ended":
        make_run(path, attempts=2, iterations=4)
    else:
        make_open_run(path, "1")
    with agent_of(path if kind == "going on" else path.with_name("another")) as agent:
        submission = {"scheduler": "local", "pid": agent.pid, "host": os.uname().nodename, "time": time.time()}
        (path / "submission.json").write_text(json.dumps(submission))
        (path / "notes.jsonl").write_text(json.dumps({"time": 1.0, "user": "ada", "text": "a remark"}) + "\n")
        yield path


def damaged(file: Path, damage: Damage | str) -> Iterator[str]:
    """Damages the file in one place after the other; yields what is wrong now."""
    text = file.read_text()
    if isinstance(damage, str):
        file.write_text(damage, errors="surrogateescape")
        yield repr(damage)
    else:
        lines = text.splitlines()
        for key in json.loads(lines[-1] if file.suffix == ".jsonl" else text):
            records = [json.loads(line) for line in lines] if file.suffix == ".jsonl" else [json.loads(text)]
            for record in records:
                if key in record:
                    damage(record, key)
            file.write_text("\n".join(map(json.dumps, records)) + "\n")
            yield key
    file.write_text(text)


@pytest.fixture
def starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a run goes on is for other tests."""
    for start in ("reopen", "run_here", "submit_run", "require_slurm"):
        monkeypatch.setattr(f"launcher.cli.resume.{start}", lambda *_: 0)


@pytest.mark.usefixtures("starts_nothing")
@pytest.mark.parametrize("kind", ["ended", "going on", "lost"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_never_costs_an_answer(
    workdir: Path, capsys: pytest.CaptureFixture[str], kind: str, damage: str
) -> None:
    with made(kind) as run:
        for file in sorted([*run.rglob("*.json"), *run.rglob("*.jsonl")]):
            for what in damaged(file, DAMAGES[damage]):
                for command in COMMANDS:
                    answers(command, f"{command} with {file.name} that {damage} {what}")
                    assert capsys.readouterr().err.count("\n") <= 3


def answers(command: list[str], where: str) -> None:
    try:
        assert main(command) in (0, 1, 2), where
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error
