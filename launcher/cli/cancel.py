"""``cancel``: let runs save and stop, or end at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.statuses import statuses_of
from launcher.errors import UserError
from launcher.records import rundir, sweepdir
from launcher.records.rundir import RunDir
from launcher.records.status import agent_alive
from launcher.records.submission import shared, submitted
from launcher.records.sweepdir import SweepDir
from launcher.slurm import commands


def cancel(argv: Sequence[str]) -> int:
    """``cancel RUN|SWEEP ... [--now]``."""
    parser = parser_of("cancel", "Let runs save and stop: SIGTERM to their ranks, the end after watch.stop_grace.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=f"{RUN_HELP}; or a sweep's")
    parser.add_argument(
        "--now", action="store_true", help="kill the ranks, also while they save: what is not saved by then is lost"
    )
    options, runs_dir = parse(parser, argv)
    problems: list[str] = []
    for text in options.runs:
        try:
            print(_cancel(runs_dir, text, options.now))
        except UserError as error:  # the others are to be stopped all the same
            problems.append(str(error))
    if problems:
        raise UserError("; ".join(problems))
    return 0


def _cancel(runs_dir: Path, text: str, now: bool) -> str:
    sweep = sweepdir.find(runs_dir, text)
    return cancel_run(rundir.find(runs_dir, text), now) if sweep is None else cancel_sweep(sweep, now)


def cancel_run(run: RunDir, now: bool = False) -> str:
    """Ask a run to save and stop, or to end `now`; returns what was asked, in words.

    Others that share its job go on: Slurm's signal would end them, too, so its agent finds the wish in the records.

    Raises:
        UserError: it does not wait or run.
        SchedulerError: Slurm cannot be reached.
    """
    (one,) = statuses_of([run])
    submission = submitted(run)
    if not one.active or not {"job_id", "pid"} & submission.keys():
        raise UserError(f"run {run.run_id} is not running: {one.state} ({one.detail})")
    if shared(run):
        _wish(run, now)
    else:
        _end([run], {str(submission.get("job_id", ""))}, {str(run.path): submission}, now)
    return f"asked {run.run_id} to {_what(now)}"


def cancel_sweep(sweep: SweepDir, now: bool = False) -> str:
    """The same of the runs of a sweep. An array is cancelled as a whole: its waiting runs never start.

    Raises:
        UserError: none of them waits or runs.
        SchedulerError: Slurm cannot be reached.
    """
    runs = [RunDir(path) for path in sweep.run_paths()]
    active = [run for run, status in zip(runs, statuses_of(runs)) if status.active]
    if not active:
        raise UserError(f"no run of sweep {sweep.sweep_id} waits or runs")
    started = {str(run.path): submitted(run) for run in active}
    jobs = {str(submission.get("job_id", "")).partition("_")[0] for submission in started.values()}
    queues = {str(batch.tasks): batch.submitted() for batch in sweep.batches()}
    _end(active, jobs, queues | started, now)
    return f"asked {len(active)} runs of {sweep.sweep_id} to {_what(now)}"


def _what(now: bool) -> str:
    return "end at once" if now else "save and stop"


def _wish(run: RunDir, now: bool) -> None:
    run.cancel.write_text("now" if now else "save")


def _end(runs: Sequence[RunDir], jobs: set[str], agents: Mapping[str, Mapping[str, Any]], now: bool) -> None:
    """Ask the jobs and the processes of this machine that have these runs; `agents` by the path of their records."""
    for run in runs:
        if now and run.attempts():
            _wish(run, now)
    if jobs - {""}:
        commands.cancel(*sorted(jobs - {""}))
    for records, submission in agents.items():
        if "pid" in submission:
            _signal(submission, records)


def _signal(submission: Mapping[str, Any], records: str) -> None:
    """SIGTERM to the agent of these records. Of one that has ended its number may be another process's by now, or
    another machine's: that is left alone."""
    if submission.get("host") == os.uname().nodename and agent_alive(records, submission["pid"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(submission["pid"], signal.SIGTERM)
