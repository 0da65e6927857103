"""Commands that look after runs: status, logs, cancel."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from launcher.cli.table import table
from launcher.cli.watch import LogReader
from launcher.errors import SchedulerError, UserError
from launcher.records import rundir
from launcher.records.files import tail
from launcher.records.rundir import RunDir
from launcher.records.status import Status, status_of
from launcher.slurm import commands
from launcher.slurm.queue import Job

_POLL_S = 0.3
_ASK_SLURM_S = 2.0


def status(argv: Sequence[str]) -> int:
    """``status [RUN ...] [--json]``: a table of runs, or of all runs."""
    parser = _parser("status", "What runs, how far it is, how it ended.")
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="a run's id or its beginning, its directory, its job's id"
    )
    parser.add_argument("--json", action="store_true", help="for programs: a list of objects")
    options, runs_dir = _parse(parser, argv)
    chosen = [rundir.find(runs_dir, text) for text in options.runs] or rundir.all_runs(runs_dir)
    statuses = statuses_of(chosen)
    if options.json:
        print(json.dumps([asdict(one) for one in statuses], indent=2))
    elif statuses:
        print(table(_HEADINGS, [_row(one) for one in statuses]))
    else:
        print(f"no runs in '{runs_dir}'")
    return 0


def logs(argv: Sequence[str]) -> int:
    """``logs RUN [--rank R] [-f]``: what a rank printed."""
    parser = _parser("logs", "What a rank of a run printed, over all its attempts.")
    parser.add_argument("run", metavar="RUN", help="a run's id or its beginning, its directory, its job's id")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="the global rank (default: 0)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    options, runs_dir = _parse(parser, argv)
    run = rundir.find(runs_dir, options.run)
    reader = LogReader(run, options.rank)
    printed = _print(reader)
    while options.follow and statuses_of([run])[0].active:
        until = time.monotonic() + _ASK_SLURM_S
        while time.monotonic() < until:
            time.sleep(_POLL_S)
            printed |= _print(reader)
    printed |= _print(reader)
    if not printed:
        _explain_silence(run, options.rank)
    return 0


def cancel(argv: Sequence[str]) -> int:
    """``cancel RUN ...``: let runs save and stop."""
    parser = _parser("cancel", "Let runs save and stop: SIGTERM to their ranks, the end after a grace.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's id or its beginning, its directory, its job's id"
    )
    options, runs_dir = _parse(parser, argv)
    chosen = [rundir.find(runs_dir, text) for text in options.runs]
    for run, one in zip(chosen, statuses_of(chosen)):
        if not one.active or not {"job_id", "pid"} & run.submitted().keys():
            raise UserError(f"run {run.run_id} is not running: {one.state} ({one.detail})")
        _cancel(run)
        print(f"asked {run.run_id} to save and stop")
    return 0


def statuses_of(runs: Sequence[RunDir]) -> list[Status]:
    """The status of each run; Slurm is asked once for all of them that have no verdict."""
    open_jobs = [str(run.submitted()["job_id"]) for run in runs if "job_id" in run.submitted() and not _closed(run)]
    jobs = _ask(open_jobs)
    return [status_of(run, jobs) for run in runs]


def _closed(run: RunDir) -> bool:
    """A verdict can be taken back by a requeue, but not for ever: Slurm need not be asked about old runs."""
    return run.result.exists() and time.time() - run.result.stat().st_mtime > 24 * 3600


def _ask(job_ids: list[str]) -> dict[str, Job] | None:
    try:
        return commands.jobs(job_ids)
    except SchedulerError:
        return None


def _cancel(run: RunDir) -> None:
    submission = run.submitted()
    if submission["scheduler"] == "slurm":
        commands.cancel(submission["job_id"])
    else:
        os.kill(submission["pid"], signal.SIGTERM)


def _print(reader: LogReader) -> bool:
    text = reader.read()
    sys.stdout.write(text)
    sys.stdout.flush()
    return bool(text)


def _explain_silence(run: RunDir, rank: int) -> None:
    """Why there is nothing to show, and what the agents printed, which may say more."""
    one = statuses_of([run])[0]
    print(f"rank {rank} of {run.run_id} has printed nothing ({one.state}{f': {one.detail}' if one.detail else ''})",
          file=sys.stderr)  # fmt: skip
    for path in [run.agent_log, *sorted(run.slurm.glob("*.out"))]:
        sys.stderr.write(tail(path, 4096).decode(errors="replace"))


def _parser(verb: str, text: str) -> argparse.ArgumentParser:
    usage = f"python -m launcher {verb}"
    return argparse.ArgumentParser(
        prog=usage, description=text, epilog="runs_dir=DIR: where the runs are (default: runs)"
    )


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, Path]:
    """The options, and ``runs_dir=DIR``, which may stand anywhere."""
    places = [word.partition("=")[2] for word in argv if word.startswith("runs_dir=")]
    options = parser.parse_intermixed_args([word for word in argv if not word.startswith("runs_dir=")])
    return options, Path((places or ["runs"])[-1]).expanduser().absolute()


_HEADINGS = ("RUN", "STATE", "CAUSE", "ITERATION", "RETURN", "FRAMES/S", "JOB", "NODES", "TRY")


def _row(one: Status) -> tuple[str, ...]:
    progress = "" if one.iteration is None else f"{one.iteration}/{one.max_iterations}"
    return (
        one.run_id,
        one.state,
        one.detail,
        progress,
        "" if one.return_mean is None else f"{one.return_mean:.1f}",
        "" if one.fps is None else f"{one.fps:,.0f}",
        one.where,
        one.nodes,
        str(one.attempts or ""),
    )
