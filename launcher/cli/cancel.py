"""``cancel``: let runs save and stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.statuses import statuses_of
from launcher.errors import UserError
from launcher.records import rundir, sweepdir
from launcher.records.rundir import RunDir
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
    if not one.active or not {"job_id", "pid"} & submitted(run).keys():
        raise UserError(f"run {run.run_id} is not running: {one.state} ({one.detail})")
    _end(submitted(run))
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
            _end(submission)
    return f"asked {active} runs of {sweep.sweep_id} to save and stop"


def _end(submission: Mapping[str, Any]) -> None:
    """Ask a job, or a process on this machine, to save and stop."""
    if submission["scheduler"] == "slurm":
        commands.cancel(submission["job_id"])
    else:
        os.kill(submission["pid"], signal.SIGTERM)
