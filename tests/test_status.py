"""``status`` over hundreds of runs, whatever Slurm says of them, or does not.

States that no Slurm can be made to show quickly come from recorded outputs (of 22.05) of squeue, sacct and sinfo,
printed by scripts that PATH has in their place; tests/test_status_slurm.py asks a real one.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.following import until_over
from launcher.cli.main import main
from launcher.cli.rows import Choice, Row
from launcher.cli.status_table import cause, status_table
from launcher.cli.status_watch import Seen, _see, picture
from launcher.cli.statuses import Overview
from launcher.cli.sweep_watch import follow_jobs
from launcher.cli.table import Fit, table
from launcher.errors import SchedulerError
from launcher.records.files import append_json_line, write_json
from launcher.records.result import Result
from launcher.records.rundir import RunDir, launchers_own
from launcher.records.status import VERDICT_S, Status, status_of
from launcher.slurm import commands
from launcher.slurm.queue import Job
from tests.conftest import ROOT, Launch, environment, launcher_command
from tests.made_records import make_open_run, make_run, make_sweep
from tests.test_local import wait_until

NOW = time.time()
SOON = NOW + 1800
NO_CONTROLLER = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
SINFO = "echo 'main*|up|infinite|1-infinite|4|64|512000|gpu:a100:2'"
CANNOT = ("unknown", "Slurm cannot be asked")
FORGOTTEN = ("lost", "Slurm no longer knows the job")


def when(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%dT%H:%M:%S}"


def queued(state: str, reason: str = "None", nodes: str = "", start: str = "N/A", end: str = "N/A",
           left: str = "1:00:00", asks: str = "2") -> str:  # fmt: skip
    """The rest of a line of squeue, after the job's id."""
    return f"{state}|{reason}|{nodes}|{start}|{end}|{left}|main|{asks}|1:00:00|gres:gpu:2"


def ended(state: str, end: float = NOW - 3600, nodes: str = "gpu[01-02]") -> str:
    """The rest of a line of sacct."""
    return f"{state}|{nodes}|{when(end)}"


@dataclass(frozen=True)
class Case:
    """A kind of run, what Slurm prints of its job, and what is right."""

    state: str
    detail: str
    squeue: str = ""
    sacct: str = ""
    attempts: int = 1
    verdict: str = ""
    result: str = ""


WAITS: dict[str, Any] = {"attempts": 0}
CASES = {
    "running": Case("running", "", queued("RUNNING", nodes="gpu[01-02]", left="59:56")),
    "resources": Case(
        "pending", "waits for free nodes (Resources)", queued("PENDING", "Resources", start=when(SOON)), **WAITS,
    ),
    "priority": Case("pending", "behind jobs of higher priority (Priority)", queued("PENDING", "Priority"), **WAITS),
    "limit": Case(
        "pending", "never: partition main has 4 nodes, and the job asks for 9 (PartitionNodeLimit)",
        queued("PENDING", "PartitionNodeLimit", asks="9"), **WAITS,
    ),
    "dependency": Case(
        "pending", "never: the job that it waits for did not end as it had to (DependencyNeverSatisfied)",
        queued("PENDING", "DependencyNeverSatisfied"), **WAITS,
    ),
    "held": Case("pending", "held by its user (JobHeldUser)", queued("PENDING", "JobHeldUser"), **WAITS),
    "begin": Case(
        "pending", "its time to begin has not come (BeginTime), goes on after preempted",
        queued("PENDING", "BeginTime", start=when(SOON)), verdict="preempted",
    ),
    "requeue-held": Case(
        "pending", "requeued and held (job requeued in held state), goes on after preempted",
        queued("PENDING", "job requeued in held state", start=when(NOW - 60)), verdict="preempted",
    ),
    "requeue-hold": Case("pending", "requeued and held (REQUEUE_HOLD)", queued("REQUEUE_HOLD")),
    "requeued": Case(
        "pending", "is being requeued (REQUEUED), goes on after time limit",
        queued("REQUEUED"), ended("REQUEUED"), verdict="time_limit",
    ),
    "requeued-gone": Case(
        "lost", "Slurm's queue no longer knows the job, its accounting has it as REQUEUED", "", ended("REQUEUED"),
    ),
    "runaway": Case(
        "lost", "Slurm's queue no longer knows the job, its accounting has it as RUNNING", "", ended("RUNNING"),
    ),
    "preempted": Case("lost", "preempted (PREEMPTED), with no verdict", "", ended("PREEMPTED")),
    "timeout": Case("lost", "ended at its time limit (TIMEOUT), with no verdict", "", ended("TIMEOUT")),
    "oom": Case("lost", "out of memory (OUT_OF_MEMORY), with no verdict", "", ended("OUT_OF_MEMORY")),
    "node-fail": Case("lost", "a node failed (NODE_FAIL), with no verdict", "", ended("NODE_FAIL")),
    "cancelled": Case("stopped", "cancelled, with no verdict", "", ended("CANCELLED by 1000")),
    "cancelled-early": Case(
        "stopped", "cancelled before it started", "", ended("CANCELLED by 0", nodes="None assigned"), **WAITS,
    ),
    "setup": Case("failed", "setup", "", ended("FAILED"), **WAITS),
    "unknown-word": Case("running", "Slurm says NEWSTATE", queued("NEWSTATE", nodes="gpu[01-02]")),
    "unknown-end": Case(
        "lost", "Slurm's queue no longer knows the job, its accounting has it as NEWSTATE", "", ended("NEWSTATE"),
    ),
    "remembered": Case(
        "lost", "ended at its time limit (TIMEOUT), with no verdict",
        queued("TIMEOUT", "TimeLimit", "gpu[01-02]", end=when(NOW - 200)), ended("TIMEOUT"),
    ),
    "late": Case(
        "running", "its job has ended (COMPLETED), the verdict has yet to be seen",
        queued("COMPLETED", "None", "gpu[01-02]", end=when(NOW + 3600)), ended("COMPLETED", NOW + 3600),
    ),
    "forgotten": Case(*FORGOTTEN),
    "completed": Case("completed", "max_iterations", "", ended("COMPLETED"), result="max_iterations"),
    "crashed": Case("failed", "crash", queued("FAILED", "NonZeroExitCode", "gpu01"), ended("FAILED"), result="crash"),
}  # fmt: skip
"""The late one has its end set for each test, within what is late."""
EACH = 12
OUTCOMES = {"max_iterations": "completed", "crash": "failed"}


@dataclass(frozen=True)
class Many:
    """A directory of hundreds of runs, and a Slurm that says what it is told to."""

    directory: Path

    def slurm(self, squeue: str | None = None, sacct: str | None = None) -> dict[str, str]:
        """The environment of a command; scripts in place of what prints the cases' lines."""
        bin_dir = self.directory / "bin"
        bin_dir.mkdir(exist_ok=True)
        (self.directory / "calls").unlink(missing_ok=True)
        prints = {
            "squeue": squeue or f"cat {self.directory}/squeue.txt",
            "sacct": sacct or f"cat {self.directory}/sacct.txt",
            "sinfo": SINFO,
            **dict.fromkeys(("sbatch", "srun", "scancel"), "exit 1"),
        }
        for name, script in prints.items():
            (bin_dir / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {self.directory}/calls\n{script}\n')
            (bin_dir / name).chmod(0o755)
        return {"PATH": f"{bin_dir}:{os.environ['PATH']}"}

    def calls(self) -> list[str]:
        """The commands of Slurm that were called since."""
        return [line.split()[0] for line in (self.directory / "calls").read_text().splitlines()]

    @property
    def runs_dir(self) -> str:
        return f"runs_dir={self.directory / 'runs'}"

    def forget(self) -> None:
        """What Slurm said before."""
        (launchers_own(self.directory / "runs") / "slurm_said.json").unlink(missing_ok=True)

    def ends_late(self) -> None:
        """The jobs that end late have ended two seconds ago."""
        for name in ("squeue", "sacct"):
            text = (self.directory / f"{name}.made").read_text()
            (self.directory / f"{name}.txt").write_text(text.replace(when(NOW + 3600), when(time.time() - 2)))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Many:
    """312 runs: twelve of each case."""
    return made(tmp_path_factory.mktemp("many"), EACH)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Many:
    """One of each case."""
    return made(tmp_path_factory.mktemp("few"), 1)


def made(directory: Path, each: int) -> Many:
    lines: dict[str, list[str]] = {"squeue": [], "sacct": []}
    for number in range(each):
        for index, (name, case) in enumerate(CASES.items()):
            job_id = str(1000 * (index + 1) + number)
            run = directory / "runs" / f"{name}-{number:02}"
            make_open_run(run, job_id, attempts=case.attempts, verdict=case.verdict)
            if case.result:
                result = {"outcome": OUTCOMES[case.result], "cause": case.result}
                (run / "result.json").write_text(json.dumps(result))
            lines["squeue"] += [f"{job_id}|{case.squeue}"] if case.squeue else []
            lines["sacct"] += [f"{job_id}|{case.sacct}"] if case.sacct else []
    for command, said in lines.items():
        (directory / f"{command}.made").write_text("\n".join(said))
    return Many(directory)


def kinds(text: str) -> dict[str, set[tuple[str, str]]]:
    """State and cause by case, of what status --json printed."""
    found: dict[str, set[tuple[str, str]]] = {}
    for one in json.loads(text):
        found.setdefault(one["run_id"].rpartition("-")[0], set()).add((one["state"], one["detail"]))
    return found


def right(**other: tuple[str, str]) -> dict[str, set[tuple[str, str]]]:
    """What is right of each case, but for some."""
    return {name: {other.get(name.replace("-", "_"), (case.state, case.detail))} for name, case in CASES.items()}


def test_notes_stand_below_a_run_and_a_sweep_that_are_named_and_in_json(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        assert main([*words]) == 0
        return capsys.readouterr().out

    make_run(workdir / "runs" / "a-run")
    make_sweep(workdir / "runs" / "a-sweep", 2)
    said("note", "a-run", "the reward \x1b[31mwas wrong")
    said("note", "a-sweep", "too few seeds")
    said("note", "a-sweep-0001", "the best one")
    when_noted = r"note of \w+ \d+ \d\d:\d\d: "
    assert re.search(rf"\na-run: {when_noted}the reward  \[31mwas wrong \(\w+\)\n", said("status", "a-run"))
    both = rf"\na-sweep: {when_noted}too few seeds \(\w+\)\na-sweep-0001: {when_noted}the best one"
    assert re.search(both, said("status", "a-sweep"))
    assert "note of" not in said("status")
    rows = {row["run_id"]: row["notes"] for row in json.loads(said("status", "--json"))}
    assert [note["text"] for note in rows["a-sweep"]] == ["too few seeds"]
    assert rows["a-run"][0].keys() == {"time", "user", "text"}


@dataclass
class Clock:
    """Time that passes only while somebody sleeps; it begins now."""

    now: float

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < NOW + 300, "nobody waits that long"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(float(int(time.time())))
    for module in ("cli.following", "cli.statuses", "cli.sweep_watch", "records.status"):
        monkeypatch.setattr(f"launcher.{module}.time", clock)
    return clock


def failed_now(directory: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose job has just failed, without a verdict, says a Slurm that remembers it."""
    run = make_open_run(directory / "runs" / "a-run", "4711", attempts=0)
    said = "4711|" + queued("FAILED", "NonZeroExitCode", "gpu01", end=when(clock.now))
    Many(directory).slurm(f"echo '{said}'", "true")
    monkeypatch.setenv("PATH", f"{directory / 'bin'}:{os.environ['PATH']}")
    return RunDir(run)


def the_sweeps_line(run: RunDir) -> None:
    follow_jobs([run], "cancel")


def one_run(run: RunDir) -> None:
    list(until_over(run))


@pytest.mark.parametrize("follow", [one_run, the_sweeps_line])
def test_a_late_verdict_is_waited_for_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, follow: Callable[[RunDir], None]
) -> None:
    run, began = failed_now(tmp_path, clock, monkeypatch), clock.now
    follow(run)
    assert VERDICT_S <= clock.now - began <= VERDICT_S + 2.5


@pytest.mark.parametrize("follow", [one_run, the_sweeps_line])
def test_a_verdict_that_comes_late_ends_the_wait(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, follow: Callable[[RunDir], None]
) -> None:
    run, began = failed_now(tmp_path, clock, monkeypatch), clock.now

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now - began > 12 and not run.result.exists():
            Result("failed", "setup").write(run.result)

    monkeypatch.setattr(clock, "sleep", sleep)
    follow(run)
    assert 12 < clock.now - began < 15


def test_hundreds_of_runs_are_right_in_every_state_for_one_question_each(launch: Launch, many: Many) -> None:
    many.forget()
    many.ends_late()
    done = launch("status", "--json", many.runs_dir, **many.slurm())
    assert kinds(done.stdout) == right(), done.stderr
    assert sorted(many.calls()) == ["sacct", "sinfo", "squeue"]
    assert len(json.loads(done.stdout)) == EACH * len(CASES) >= 300


def lost(*names: str) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(names, FORGOTTEN)


ONLY_SACCT_KNOWS = (
    "requeued_gone", "runaway", "preempted", "timeout", "oom", "node_fail", "cancelled", "cancelled_early", "setup",
    "unknown_end",
)  # fmt: skip


def test_without_accounting_what_the_queue_forgot_is_lost_and_all_else_as_right(launch: Launch, few: Many) -> None:
    few.forget()
    few.ends_late()
    done = launch("status", "--json", few.runs_dir, **few.slurm(sacct=NO_ACCOUNTING))
    assert kinds(done.stdout) == right(**lost(*ONLY_SACCT_KNOWS)), done.stderr


def test_without_accounting_an_end_that_slurm_once_told_is_kept(launch: Launch, few: Many) -> None:
    few.forget()
    few.ends_late()
    launch("status", few.runs_dir, **few.slurm(sacct=NO_ACCOUNTING))
    runs, empty = few.runs_dir, "exit 0"
    done = launch("status", "--json", runs, **few.slurm(squeue=empty, sacct=NO_ACCOUNTING))
    found = kinds(done.stdout)
    assert found["remembered"] == right()["remembered"]
    assert found["running"] == {FORGOTTEN}


GOES_ON = ("running", "resources", "priority", "limit", "dependency", "held", "begin", "requeue-held", "requeue-hold",
           "requeued", "unknown-word")  # fmt: skip


def test_with_no_controller_nothing_is_guessed(launch: Launch, few: Many) -> None:
    few.forget()
    few.ends_late()
    done = launch("status", "--json", few.runs_dir, **few.slurm(squeue=NO_CONTROLLER))
    silent = (*GOES_ON, "requeued-gone", "runaway", "unknown-end", "forgotten")
    expected = right(**{name.replace("-", "_"): CANNOT for name in silent})
    assert kinds(done.stdout) == expected
    shown = launch("status", few.runs_dir, **few.slurm(squeue=NO_CONTROLLER)).stdout
    assert "Slurm cannot be asked (squeue failed: slurm_load_jobs error: Unable to contact" in shown


def test_with_no_controller_the_answer_of_before_is_shown_with_its_time(launch: Launch, few: Many) -> None:
    few.forget()
    few.ends_late()
    launch("status", few.runs_dir, **few.slurm())
    done = launch("status", "--json", few.runs_dir, **few.slurm(squeue=NO_CONTROLLER, sacct=NO_ACCOUNTING))
    assert kinds(done.stdout) == right(forgotten=CANNOT)
    marked = {one["run_id"].rpartition("-")[0] for one in json.loads(done.stdout) if one["as_of"] is not None}
    assert marked == set(GOES_ON)
    shown = launch("status", few.runs_dir, **few.slurm(squeue=NO_CONTROLLER, sacct=NO_ACCOUNTING)).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("resources-00")]
    assert re.search(r"pending +as of \d\d:\d\d: waits for free nodes \(Resources\)", line)


def test_a_slurm_that_does_not_answer_in_time_is_an_older_answer(few: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", few.slurm(squeue="exec sleep 30")["PATH"])
    monkeypatch.setattr(commands, "LOOK_S", 0.2)
    write_json(launchers_own(few.directory / "runs", make=True) / "slurm_said.json", {"jobs": {}})
    began, overview = time.monotonic(), Overview()
    (one,) = overview.look([RunDir(few.directory / "runs" / "running-00")])
    assert (one.state, one.detail) == CANNOT
    assert "did not answer within" in overview.failure and time.monotonic() - began < 5


def test_hundreds_of_runs_take_less_than_a_second(many: Many) -> None:
    many.ends_late()
    env = environment(**many.slurm())
    process = subprocess.Popen(launcher_command("status", many.runs_dir), env=env, stdout=subprocess.DEVNULL)
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    assert process.returncode == 0
    assert used.ru_utime + used.ru_stime < 1.0  # of a processor: what else the machine does, does not count


def said_of(text: str, run_id: str) -> dict[str, Any]:
    (found,) = [one for one in json.loads(text) if one["run_id"] == run_id]
    return found


def test_a_row_has_what_slurm_and_the_records_say(launch: Launch, few: Many) -> None:
    few.ends_late()
    text = launch("status", "--json", few.runs_dir, **few.slurm()).stdout
    runs, waits, held = (said_of(text, name) for name in ("running-00", "resources-00", "requeue-held-00"))
    assert (runs["iteration"], runs["max_iterations"], runs["time_left_s"]) == (120, 500, 3596)
    assert (waits["starts_at"], waits["never"]) == (float(int(SOON)), False)
    assert (held["release"], held["starts_at"]) == ("scontrol release 8000", None)
    assert said_of(text, "limit-00")["never"] is True
    shown = launch("status", few.runs_dir, **few.slurm()).stdout.splitlines()
    (line,) = [line for line in shown if line.startswith("requeue-held-00 ")]
    assert "scontrol release 8000: requeued and held (job requeued in held state), goes on after preempted" in line
    (line,) = [line for line in shown if line.startswith("running-00 ")]
    assert line.split()[1:4] == ["running", "120/500", "96.0"]
    assert line.split()[4:] == ["1,120", "55%,", "least", "50%", "gpu01", "38%", "00:59:56", "1000", "gpu[01-02]", "1"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--failed"], {name for name, case in CASES.items() if case.state in ("failed", "lost")}),
        (["--since", "1h"], CASES.keys() - {"completed"}),
        (["--since", "1h", "--failed", "crashed-00", "timeout-00", "running-00"], {"crashed", "timeout"}),
    ],
)
def test_only_some_are_shown(launch: Launch, few: Many, options: list[str], expected: set[str]) -> None:
    few.ends_late()
    for path in (few.directory / "runs").glob("completed-*/**/*"):
        os.utime(path, (NOW - 7200, NOW - 7200))
    assert kinds(launch("status", "--json", few.runs_dir, *options, **few.slurm()).stdout).keys() == expected


def test_a_time_that_is_none_and_a_sweep_that_is_none_are_said_so_in_one_line(launch: Launch, workdir: Path) -> None:
    for words, text in ((["--since", "2"], "'2' is no age: write a number"), (["--sweep", "nix"], "no sweep 'nix'")):
        done = launch("status", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert text in done.stderr
    assert "needs a terminal" in launch("status", "--watch").stderr


def test_a_sweeps_runs_are_shown_one_by_one_on_request_and_where_only_the_failed_are_wanted(
    launch: Launch, workdir: Path
) -> None:
    sweep = make_sweep(workdir / "runs" / "20260101-000000-sweep-aaaa", 3)
    Result("failed", "crash").write(sweep / f"{sweep.name}-0001" / "result.json")
    make_run(workdir / "runs" / "20260101-000000-ant-rsl_rl-bbbb")
    assert len(json.loads(launch("status", "--json").stdout)) == 2
    rows = json.loads(launch("status", "--json", "--sweep", sweep.name[:20]).stdout)
    assert [row["overrides"].split()[-1] for row in rows] == ["seed=0", "seed=1", "seed=2"]
    failed = json.loads(launch("status", "--json", "--failed").stdout)
    assert [row["run_id"] for row in failed] == [f"{sweep.name}-0001"]


def test_json_has_a_documented_name_for_everything_and_no_word_that_json_lacks(launch: Launch, workdir: Path) -> None:
    run = make_run(workdir / "runs" / "20260101-000000-ant-rsl_rl-bbbb")
    append_json_line(run / "metrics.jsonl", {"iteration": 41, "return_mean": float("nan")})
    text = launch("status", "--json").stdout
    (row,) = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    documented = (ROOT / "docs" / "status.md").read_text()
    assert row.keys() == {field.name for field in fields(Status)} | {"overrides"}
    assert not [name for name in row if f"| `{name}` |" not in documented]


def test_a_run_that_may_hang_says_so_until_it_moves_again(tmp_path: Path) -> None:
    run = RunDir(make_open_run(tmp_path / "runs" / "a-run", "7"))
    events = run.attempts()[-1].events
    append_json_line(events, {"event": "suspicion", "message": "rank 3 on gpu02 keeps the others waiting"})
    jobs = {"7": Job("RUNNING")}
    assert status_of(run, jobs).detail == "may hang: rank 3 on gpu02 keeps the others waiting"
    append_json_line(events, {"event": "moves_again"})
    assert status_of(run, jobs).detail == ""


def test_a_running_run_without_a_new_iteration_says_since_when(tmp_path: Path) -> None:
    quiet, lively = (RunDir(make_open_run(tmp_path / "runs" / f"run-{age}", "7", age_s=age)) for age in (5000, 500))
    jobs = {"7": Job("RUNNING")}
    assert re.fullmatch(r"no iteration since (\w+ \d+ )?\d\d:\d\d", cause(status_of(quiet, jobs)))
    assert cause(status_of(lively, jobs)) == ""


def test_a_run_that_is_watched_alone_shows_its_nodes(tmp_path: Path) -> None:
    one = status_of(RunDir(make_open_run(tmp_path / "runs" / "a-run", "7")), {"7": Job("RUNNING")})
    lines = [text for text, _ in picture(Seen([Row(one)], ["a note"]), 0.0, 80, 24)]
    assert [line.split()[:2] for line in lines[4:]] == [
        [],
        ["NODE", "GPU"],
        ["gpu01", "55%"],
        ["gpu02", "55%"],
        ["a", "note"],
    ]
    assert len(picture(Seen([Row(one)], ["a note"]), 0.0, 80, 7)) == 7


def test_what_a_rank_printed_does_not_steer_the_terminal(tmp_path: Path) -> None:
    run = RunDir(make_open_run(tmp_path / "runs" / "a-run", "7"))
    Result("failed", "crash", message="\x1b[2Jgone\r").write(run.result)
    shown = status_table([Row(status_of(run, {}))], 80)
    assert "gone" in shown and shown.replace("\n", "").isprintable()


def test_filters_that_a_person_has_set_for_squeue_hide_no_job(few: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    said = few.slurm(squeue='test -z "$SQUEUE_PARTITION" && echo "7|RUNNING|None|n1|N/A|N/A|N/A|main|1|N/A|N/A"')
    monkeypatch.setenv("PATH", said["PATH"])
    monkeypatch.setenv("SQUEUE_PARTITION", "another")
    assert commands.jobs(["7"])["7"].active


def answers(monkeypatch: pytest.MonkeyPatch, said: Mapping[str, Job] | str) -> list[float]:
    """Have Slurm answer this, or fail with it; returns the times at which it is asked."""
    asked: list[float] = []

    def jobs(job_ids: Sequence[str], *_: object) -> dict[str, Job]:
        asked.append(time.time())
        if isinstance(said, str):
            raise SchedulerError(said)
        return {job_id: said[job_id] for job_id in job_ids}

    monkeypatch.setattr(commands, "jobs", jobs)
    monkeypatch.setattr(commands, "ended_jobs", lambda _: {})
    return asked


class Terminal:
    """A pseudo-terminal of some size, and the pictures that a command draws in it."""

    def __init__(self, columns: int, lines: int) -> None:
        self.ours, self.theirs = pty.openpty()
        self._text = ""
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, key: str) -> None:
        os.write(self.ours, key.encode())

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.theirs)

    def text(self) -> str:
        """All that was written so far."""
        while select.select([self.ours], [], [], 0)[0]:
            self._text += os.read(self.ours, 65536).decode(errors="replace")
        return self._text

    def picture(self) -> list[str]:
        """The lines of the newest whole picture, without colours."""
        pictures = re.findall(r"\x1b\[H(.*?)\x1b\[J", self.text(), re.DOTALL)
        return re.sub(r"\x1b\[[\d;]*[mK]", "", pictures[-1]).split("\r\n") if pictures else []

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


def test_a_screen_fits_its_terminal_follows_its_size_and_leaves_it_as_it_was(many: Many) -> None:
    many.ends_late()
    terminal = Terminal(100, 30)
    before = terminal.settings()
    command = ["setsid", "--ctty", *launcher_command("status", "--watch", many.runs_dir)]
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    process = subprocess.Popen(command, env=environment(TERM="xterm", COLUMNS="40", **many.slurm()), **ends)
    try:
        wide = wait_until(lambda: len(terminal.picture()) == 30 and terminal.picture(), 20)
        assert max(map(len, wide)) <= 100 and " · 36 running · 108 pending · " in wide[0]
        assert not terminal.settings()[3] & termios.ECHO
        terminal.resize(60, 12)
        narrow = wait_until(lambda: len(terminal.picture()) == 12 and terminal.picture(), 20)
        assert max(map(len, narrow)) <= 60 and narrow[-1].startswith("… and 28 running")
        terminal.press("\x03")
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    assert terminal.settings() == before
    after = terminal.text().rpartition("\x1b[?1049l")[2]
    assert len(after.splitlines()) == 12 and "Traceback" not in terminal.text()
    terminal.close()


def looked_for(seconds: int, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every two seconds for so long, in no time."""
    overview, began = Overview(), time.time()
    for second in range(0, seconds, 2):
        monkeypatch.setattr(time, "time", lambda second=second: began + second)
        overview.look([run])


def test_who_looks_again_and_again_asks_slurm_every_five_seconds_and_less_often_while_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(make_open_run(tmp_path / "runs" / "a-run", "7"))
    asked = answers(monkeypatch, {"7": Job("RUNNING")})
    looked_for(60, run, monkeypatch)
    assert [round(at - asked[0]) for at in asked] == list(range(0, 60, 6))
    asked = answers(monkeypatch, "no controller")
    looked_for(600, run, monkeypatch)
    assert [round(at - asked[0]) for at in asked] == [0, 10, 30, 70, 150, 270, 390, 510]


def test_a_job_that_is_new_is_asked_about_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (RunDir(make_open_run(tmp_path / "runs" / f"run-{job}", job)) for job in "78")
    asked = answers(monkeypatch, {"7": Job("RUNNING"), "8": Job("RUNNING")})
    overview = Overview()
    assert [one.state for one in overview.look([first])] == ["running"]
    assert [one.state for one in overview.look([first, second])] == ["running", "running"]
    assert len(asked) == 2


def test_a_table_that_is_too_wide_loses_columns_and_then_words_of_the_cause() -> None:
    headings, row = ("RUN", "STATE", "CAUSE", "JOB", "TRY"), ("a-run", "pending", "waits for free nodes", "7", "1")
    whole = table(headings, [row])
    assert table(headings, [row], Fit(99, "CAUSE", 10, ("JOB", "TRY"))) == whole
    no_job = table(headings, [row], Fit(31, "CAUSE", 10, ("JOB", "TRY")))
    assert no_job.splitlines()[1] == "a-run  pending  waits for…  1"
    least = table(headings, [row], Fit(5, "CAUSE", 10, ("JOB", "TRY")))
    assert least.splitlines()[1] == "a-run  pending  waits for…"


def test_a_screen_shows_what_goes_on_first_and_counts_what_has_no_room(
    many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    many.ends_late()
    monkeypatch.setenv("PATH", many.slurm()["PATH"])
    seen = _see(Choice(many.directory / "runs"), Overview())
    lines = [text for text, _ in picture(seen, time.time(), 100, 30)]
    assert len(lines) <= 30 and max(map(len, lines)) <= 100
    assert re.search(r" · Slurm \d s ago · 36 running · 108 pending · ", lines[0])
    assert " running " in lines[3] and lines[-1].startswith("… and 10 running · 108 pending · ")
    assert picture(Seen([], []), 0.0, 80, 24)[0][0].endswith(" · no runs")
    for height in range(1, 6):
        assert len(picture(seen, time.time(), 20, height)) <= max(height, 3)
