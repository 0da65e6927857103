"""Commands that compose a run: start it, show it, write it as a script."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from launcher.cli.arguments import Arguments
from launcher.cli.help import help_text
from launcher.cli.show_plan import describe
from launcher.cli.watch import Watcher, wait_for_job
from launcher.config.compose import Composed, compose, compose_file
from launcher.config.schema import Config
from launcher.config.validate import validate
from launcher.errors import LauncherError, UserError
from launcher.plan.plan import Plan
from launcher.records.files import write_atomic
from launcher.records.result import COMPLETED, STOPPED, read_result
from launcher.records.rundir import RunDir
from launcher.submit.prepare import plan_here, require_packages, write_run
from launcher.submit.provenance import collect
from launcher.submit.slurm import require_slurm, submit

EXIT_CODES = {COMPLETED: 0, STOPPED: 130}
"""Of a run in the foreground, by its outcome; 1 for all others."""


def start(arguments: Arguments) -> int:
    """Compose a run and start it; returns the command's exit code."""
    composed = _compose(arguments)
    return start_plan(plan_here(composed.config), composed)


def start_plan(plan: Plan, composed: Composed, snapshot_of: Path | None = None) -> int:
    """Start a plan, or show it where the configuration wants that; returns the command's exit code.

    `snapshot_of` is the snapshot of another run to copy instead of the code.
    """
    config = composed.config
    if config.dry_run:
        print(describe(plan))
        return 0
    require_packages(config)
    if plan.scheduler == "slurm":
        require_slurm()
    run = write_run(plan, composed, collect(plan), snapshot_of)
    return _run_here(plan, run) if plan.scheduler == "local" else _submit(plan, run, config)


def show(arguments: Arguments) -> int:
    """Print the plan and start nothing."""
    if arguments.help:
        print(help_text(arguments.config_dirs))
        return 0
    plan = plan_here(_compose(arguments).config)
    print(plan.to_json() if arguments.json else describe(plan))
    return 0


def render(arguments: Arguments) -> int:
    """Write the run as a script for sbatch."""
    if arguments.help:
        print(help_text(arguments.config_dirs))
        return 0
    from launcher.submit.script import script

    composed = _compose(arguments)
    plan = plan_here(composed.config)
    if plan.scheduler != "slurm":
        raise UserError("render writes a script for Slurm: choose a cluster, such as cluster=a100x2")
    if arguments.output is None:
        raise UserError("render needs the file to write: -o run.sbatch")
    run = write_run(plan, composed, collect(plan))
    try:
        write_atomic(Path(arguments.output), script(plan))
    except OSError as error:
        shutil.rmtree(run.path)
        raise UserError(f"cannot write '{arguments.output}': {error.strerror}") from error
    print(f"wrote {arguments.output} for run {run.run_id}\n  submit it  sbatch {arguments.output}")
    return 0


def _compose(arguments: Arguments) -> Composed:
    if arguments.config_name is None:
        composed = compose(arguments.overrides, arguments.config_dirs)
    else:
        composed = compose_file(arguments.config_name, arguments.overrides, arguments.config_dirs)
    validate(composed.config)
    return composed


def _run_here(plan: Plan, run: RunDir) -> int:
    from launcher.submit.local import Foreground

    print(f"{plan.one_line_name}: {_ranks(plan)} on this machine · {run.path}", flush=True)
    watcher = Watcher(run, plan, show_log=plan.console == "log")
    code = Foreground(run).wait(watcher.update, watcher.say_stopping)
    watcher.close()
    result = read_result(run.result)
    if result is None:
        raise LauncherError(f"the node agent ended with code {code} and left no verdict: see {run.agent_log}")
    return conclude(run)


def _submit(plan: Plan, run: RunDir, config: Config) -> int:
    try:
        job_id = submit(plan, run)
    except BaseException:
        shutil.rmtree(run.path)
        raise
    print(f"submitted job {job_id}: {plan.one_line_name}, {_ranks(plan)} on {plan.resources.nodes} nodes · {run.path}")
    if config.wait:
        wait_for_job(run, plan, job_id)
        return conclude(run)
    for label, verb in (("state", "status"), ("output", "logs -f"), ("stop", "cancel")):
        print(f"  {label:<7} python -m launcher {verb} {_as_typed(run, config)}")
    return 0


def conclude(run: RunDir) -> int:
    """Print the verdict of a run that has ended; returns the exit code that says the same."""
    result = read_result(run.result)
    if result is None:
        raise LauncherError(f"the job ended and left no verdict: see {run.slurm}")
    out = sys.stdout if result.outcome == COMPLETED else sys.stderr
    print(f"{result.line()} · {run.path}", file=out)
    if result.hint:
        print(f"  {result.hint}", file=out)
    return EXIT_CODES.get(result.outcome, 1)


def _ranks(plan: Plan) -> str:
    count = plan.resources.world_size
    return f"{count} rank{'s' if count != 1 else ''}"


def _as_typed(run: RunDir, config: Config) -> str:
    """The run as the next commands name it: its id where they find it by that."""
    return run.run_id if config.runs_dir == "runs" else f"{run.run_id} runs_dir={config.runs_dir}"
