"""``resume``: start again, in its own directory and from its newest checkpoint, what has ended without completing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.start import run_here, submit_run
from launcher.cli.statuses import statuses_of
from launcher.cli.sweep import hand_over
from launcher.errors import UserError
from launcher.records import rundir, sweepdir
from launcher.records.result import COMPLETED, FAILED
from launcher.records.rundir import RunDir
from launcher.records.status import LOST
from launcher.records.submission import reopen
from launcher.records.sweepdir import SweepDir
from launcher.submission.prepare import stored_plan
from launcher.submission.slurm import require_slurm
from launcher.submission.sweep import stored_member


def resume(argv: Sequence[str]) -> int:
    """``resume RUN|SWEEP [--failed] [--wait]``."""
    parser = parser_of("resume", "Start a run again, or the runs of a sweep, from where they are.")
    parser.add_argument("run", metavar="RUN", help=f"{RUN_HELP}; or a sweep's")
    parser.add_argument("--failed", action="store_true", help="of a sweep only the runs that failed or were lost")
    parser.add_argument("--wait", action="store_true", help="follow it to its end")
    options, runs_dir = parse(parser, argv)
    sweep = sweepdir.find(runs_dir, options.run)
    if sweep is not None:
        return _resume_sweep(sweep, options.failed, options.wait)
    return _resume_run(rundir.find(runs_dir, options.run), options.wait)


def _resume_run(run: RunDir, wait: bool) -> int:
    (one,) = statuses_of([run])
    if one.active:
        raise UserError(f"run {run.run_id} has not ended: {one.state} {one.detail}".rstrip())
    if one.state == COMPLETED:
        raise UserError(f"run {run.run_id} has completed; train on from it with resume={run.run_id} max_iterations=N")
    plan = stored_plan(run.plan)
    if plan.scheduler == "slurm":
        require_slurm()
    reopen(run)
    return run_here(plan, run) if plan.scheduler == "local" else submit_run(plan, run, wait)


def _resume_sweep(sweep: SweepDir, failed: bool, wait: bool) -> int:
    states = (FAILED, LOST) if failed else None
    runs = [
        RunDir(Path(one.run_dir))
        for one in statuses_of([RunDir(path) for path in sweep.run_paths()])
        if not one.active and (one.state in states if states else one.state != COMPLETED)
    ]
    if not runs:
        raise UserError(f"sweep {sweep.sweep_id} has no run that {'failed' if failed else 'could be started again'}")
    members = [stored_member(run) for run in runs]
    if members[0].plan.scheduler == "slurm":
        require_slurm()
    for run in runs:
        reopen(run)
    return hand_over(sweep, members, wait)
