"""``cancel``: let runs save and stop."""

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
from launcher.records.submission import submitted
from launcher.records.sweepdir import SweepDir
from launcher.slurm import commands


def cancel(argv: Sequence[str]) -> int:
    """``cancel RUN|SWEEP ...``."""
    parser = parser_of("cancel", "Let runs save and stop: SIGTERM to their ranks, the end after a grace.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=f"{RUN_HELP}; or a sweep's")
    options, runs_dir = parse(parser, argv)
    problems: list[str] = []
    for text in options.runs:
        try:
            sweep = sweepdir.find(runs_dir, text)
            print(cancel_run(rundir.find(runs_dir, text)) if sweep is None else cancel_sweep(sweep))
        except UserError as error:  # the others are to be stopped all the same
            problems.append(str(error))
    if problems:
        raise UserError("; ".join(problems))
    return 0


def cancel_run(run: RunDir) -> str:
    """Ask a run to save and stop; returns what was done, in words.

    Raises:
        UserError: it does not wait or run.
        SchedulerError: Slurm cannot be reached.
    """
    (one,) = statuses_of([run])
    submission = submitted(run)
    if not one.active or not {"job_id", "pid"} & submission.keys():
        raise UserError(f"run {run.run_id} is not running: {one.state} ({one.detail})")
    if "queue" in submission:  # its agent is that of all runs
        sweep = run.path.parent.name
        raise UserError(f"run {run.run_id} waits for its turn on this machine: cancel {sweep} stops the whole sweep")
    _end(submission, run.path)
    return f"asked {run.run_id} to save and stop"


def cancel_sweep(sweep: SweepDir) -> str:
    """The same of the runs of a sweep. An array is cancelled as a whole: its waiting runs never start.

    Raises:
        UserError: none of them waits or runs.
        SchedulerError: Slurm cannot be reached.
    """
    runs = [RunDir(path) for path in sweep.run_paths()]
    active = sum(status.active for status in statuses_of(runs))
    if not active:
        raise UserError(f"no run of sweep {sweep.sweep_id} waits or runs")
    for batch in sweep.batches():
        if submission := batch.submitted():
            _end(submission, batch.tasks)
    return f"asked {active} runs of {sweep.sweep_id} to save and stop"


def _end(submission: Mapping[str, Any], records: Path) -> None:
    """Ask a job, or the agent of these records on this machine, to save and stop; one that has ended is left alone.

    Of an agent that has ended its number may be another process's by now, or another machine's.
    """
    if submission["scheduler"] == "slurm":
        commands.cancel(submission["job_id"])
    elif submission.get("host") == os.uname().nodename and agent_alive(str(records), submission["pid"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(submission["pid"], signal.SIGTERM)
