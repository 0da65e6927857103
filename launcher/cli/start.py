"""Commands that compose a run: start it, show it, write it as a script."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.arguments import Arguments, read
from launcher.cli.help import help_of
from launcher.cli.show_plan import describe
from launcher.config.compose import Composed, compose, compose_file
from launcher.config.validate import validate
from launcher.errors import LauncherError, UserError
from launcher.plan.plan import Plan
from launcher.records.files import write_atomic
from launcher.records.result import COMPLETED, FAILED, STOPPED, read_result
from launcher.records.rundir import RunDir
from launcher.submission.batch_job import BatchJob, batch_job
from launcher.submission.new_run import new_run, submit_new
from launcher.submission.prepare import plan_here, write_run
from launcher.submission.provenance import collect
from launcher.submission.slurm import submit, why_never

EXIT_CODES = {COMPLETED: 0, STOPPED: 130}
"""Of a run in the foreground, by its outcome; 1 for all others."""


def start(arguments: Arguments) -> int:
    """Compose a run and start it; returns the command's exit code."""
    composed = composed_of(arguments)
    return start_plan(plan_here(composed.config), composed)


def start_plan(plan: Plan, composed: Composed, snapshot_of: Path | None = None) -> int:
    """Start a plan, or show it where the configuration wants that; returns the command's exit code.

    `snapshot_of` is the snapshot of another run to copy instead of the code.
    """
    config = composed.config
    if config.dry_run:
        print(describe(plan))
        return 0
    run = new_run(plan, composed, snapshot_of)
    if plan.scheduler == "none":
        return _show_commands(plan, run)
    if plan.scheduler == "local":
        return run_here(plan, run)
    return _submitted(submit_new(plan, run), plan, run, config.wait)


def show(argv: Sequence[str]) -> int:
    """``plan``: print the plan and start nothing."""
    arguments = read(argv, verb="plan")
    if arguments.help:
        print(help_of("plan"))
        return 0
    plan = plan_here(composed_of(arguments).config)
    print(plan.to_json() if arguments.json else describe(plan))
    return 0


def render(argv: Sequence[str]) -> int:
    """``render``: write the run as a script for sbatch."""
    arguments = read(argv, verb="render")
    if arguments.help:
        print(help_of("render"))
        return 0
    if arguments.multirun:
        from launcher.cli.sweep import render_sweep

        return render_sweep(arguments)
    composed = composed_of(arguments)
    plan = plan_here(composed.config)
    require_script(arguments, plan)
    text = script_text(arguments, plan, batch_job(plan))
    run = write_run(plan, composed, collect(plan))
    write_script(arguments, text, run.path)
    return 0


def require_script(arguments: Arguments, plan: Plan) -> None:
    """Fail where ``render`` cannot write a script.

    Raises:
        UserError: the plan is not for Slurm, or there is no file to write to.
    """
    if plan.scheduler != "slurm":
        raise UserError("render writes a script for Slurm: choose a cluster, such as cluster=a100x2")
    if arguments.output is None:
        raise UserError("render needs the file to write: -o run.sbatch")


def script_text(arguments: Arguments, plan: Plan, job: BatchJob) -> str:
    """The script that ``render`` is to write, from the template that it names.

    Raises:
        UserError: the template is none.
    """
    from launcher.submission.script import script, script_from

    return script(plan, job) if arguments.template is None else script_from(plan, job, Path(arguments.template))


def write_script(arguments: Arguments, text: str, records: Path) -> None:
    """Write the script of these records, which go again when that fails.

    Raises:
        UserError: it cannot be written.
    """
    output = arguments.output or ""
    if output == "-":
        print(text, end="")
        print(f"the records of {records.name} are in {records}", file=sys.stderr)
        return
    try:
        write_atomic(Path(output), text)
    except OSError as error:
        shutil.rmtree(records)
        raise UserError(f"cannot write '{output}': {error.strerror}") from error
    print(f"wrote {output} for {records.name}\n  submit it  sbatch {shlex.quote(output)}")


def commands(argv: Sequence[str]) -> int:
    """``commands``: print the command that starts the run on each of its hosts."""
    arguments = read(argv, verb="commands")
    if arguments.help:
        print(help_of("commands"))
        return 0
    arguments.overrides.append("cluster.scheduler=none")
    composed = composed_of(arguments)
    if composed.config.wait:
        raise UserError("commands starts nothing, so there is nothing to wait for: leave wait=true out")
    return start_plan(plan_here(composed.config), composed)


def _show_commands(plan: Plan, run: RunDir) -> int:
    from launcher.submission.by_hand import write_commands

    print(f"{plan.one_line_name}: {_ranks(plan)} on {plan.resources.nodes} hosts · {run.path}")
    for host, command in zip(plan.hosts, write_commands(plan, run)):
        print(f"\n# on {host}\n{command}")
    print(f"\nstart them within {plan.budgets.rendezvous_s:.0f} s of each other; Ctrl-C in any of them saves and stops")
    return 0


def composed_of(arguments: Arguments) -> Composed:
    """The valid configuration that a command line asks for."""
    if arguments.config_name is None:
        composed = compose(arguments.overrides, arguments.config_dirs)
    else:
        composed = compose_file(arguments.config_name, arguments.overrides, arguments.config_dirs)
    validate(composed.config)
    return composed


def run_here(plan: Plan, run: RunDir) -> int:
    """Run on this machine, to the end; returns the command's exit code."""
    from launcher.cli.watch import Watcher
    from launcher.submission.local import Foreground

    print(f"{plan.one_line_name}: {_ranks(plan)} on this machine · {run.path}", flush=True)
    watcher = Watcher(run, plan, show_log=plan.console == "log")
    code = Foreground.run(run).wait(watcher.update, watcher.say_stopping)
    watcher.close()
    if read_result(run.result) is None:
        raise LauncherError(f"the node agent ended with code {code} and left no verdict: see {run.agent_log}")
    return conclude(run)


def warn_of_never(plan: Plan) -> None:
    """No refusal: a partition that is down, or full of other limits, may be another one tomorrow."""
    if reason := why_never(plan):
        print(f"launcher: this job would wait for ever, as things are: {reason}", file=sys.stderr)


def submit_run(plan: Plan, run: RunDir, wait: bool) -> int:
    """Submit to Slurm, and follow the job if that is wanted; returns the command's exit code."""
    return _submitted(submit(plan, run), plan, run, wait)


def _submitted(job_id: str, plan: Plan, run: RunDir, wait: bool) -> int:
    warn_of_never(plan)
    print(f"submitted job {job_id}: {plan.one_line_name}, {_ranks(plan)} on {_nodes(plan)} · {run.path}")
    if wait:
        from launcher.cli.watch import wait_for_job

        wait_for_job(run, plan)
        return conclude(run)
    for label, verb in (("state", "status"), ("output", "logs -f"), ("stop", "cancel")):
        print(f"  {label:<7} python -m launcher {verb} {as_typed(run.path)}")
    return 0


def conclude(run: RunDir) -> int:
    """Print the verdict of a run that has ended; returns the exit code that says the same."""
    result = read_result(run.result)
    if result is None:
        raise LauncherError(f"the job ended and left no verdict: see {run.slurm}")
    out = sys.stdout if result.outcome == COMPLETED else sys.stderr
    print(f"{result.line()} · {run.path}", file=out)
    if why := result.then.partition(": ")[2]:
        print(f"  not tried again: {why}", file=out)
    if result.hint:
        print(f"  {result.hint}", file=out)
    if result.outcome == FAILED:
        print(f"  the whole story: python -m launcher why {as_typed(run.path)}", file=out)
    return EXIT_CODES.get(result.outcome, 1)


def _ranks(plan: Plan) -> str:
    count = plan.resources.world_size
    return f"{count} rank{'s' if count != 1 else ''}"


def _nodes(plan: Plan) -> str:
    return f"{plan.resources.nodes} node{'s' if plan.resources.nodes != 1 else ''}"


def as_typed(path: Path) -> str:
    """A run or a sweep as the next commands name it: its id where they find it by that."""
    runs_dir = RunDir(path).runs_dir  # a run of a sweep is found from there, too
    elsewhere = "" if runs_dir == Path("runs").absolute() else shlex.quote(f"runs_dir={runs_dir}")
    return f"{path.name} {elsewhere}".rstrip()
