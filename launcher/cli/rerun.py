"""``rerun RUN``: a new run from the records of an earlier one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.cli.parser import Parser
from launcher.cli.start import start_plan
from launcher.config.compose import Composed, recompose
from launcher.config.literals import quote
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.plan.plan import Plan
from launcher.records import rundir
from launcher.records.rundir import RunDir
from launcher.submission.prepare import plan_again, plan_here, stored_plan

_GROUPS = ("task", "library", "cluster", "agent")


def rerun(argv: Sequence[str]) -> int:
    """Start a run like an earlier one; returns the command's exit code."""
    options = _parser().parse_intermixed_args(argv)
    places = [word.partition("=")[2] for word in options.overrides if word.startswith("runs_dir=")]
    runs_dir = Path(os.path.expanduser((places or ["runs"])[-1])).absolute()
    run = rundir.find(runs_dir, options.run)
    original = stored_plan(run.plan)
    changes = [word for word in options.overrides if not word.startswith("runs_dir=")]
    for group in (word.partition("=")[0] for word in changes if word.partition("=")[0] in _GROUPS):
        raise UserError(f"rerun keeps the choice of {group}: change single keys of it, as {group}.KEY=VALUE")
    place = [f"runs_dir={quote(str(runs_dir))}"] if places else []  # else the original's
    composed = recompose(run.config, [*_recorded(original), *place, *changes])
    if original.snapshot and not options.current_code:
        return _with_its_snapshot(run, original, composed)
    return _with_the_code_as_it_is(run, original, composed)


def _with_its_snapshot(run: RunDir, original: Plan, composed: Composed) -> int:
    _go_to(original.workdir)  # where relative paths of the configuration are found
    validate(composed.config)
    print(f"repeats {run.run_id} with its snapshot of the code")
    return start_plan(plan_again(composed.config, original), composed, Path(original.snapshot))


def _with_the_code_as_it_is(run: RunDir, original: Plan, composed: Composed) -> int:
    _go_to(original.submit_dir)
    validate(composed.config)
    print(f"repeats {run.run_id} with the code as it is now in {original.submit_dir}")
    return start_plan(plan_here(composed.config), composed)


def _recorded(original: Plan) -> Iterator[str]:
    """What the configuration alone does not say, and what is a matter of the command and not of the run."""
    yield from ("wait=false", "dry_run=false")
    if original.resume:  # `resume=latest` would mean another checkpoint by now
        yield f"resume={quote(original.resume)}"


def _go_to(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise UserError(f"cannot enter the directory of the run's code, '{directory}': {error.strerror}") from error


def _parser() -> Parser:
    parser = Parser(
        prog="python -m launcher rerun",
        description="Start a run like an earlier one, from its records: the same configuration, whatever conf/ says"
        " now, and the same code, if the run had a snapshot. It gets a directory of its own.",
        epilog="runs_dir=DIR: where the runs are (default: runs)",
    )
    parser.add_argument("run", metavar="RUN", help="a run's id or its beginning, its directory, its job's id")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="single keys to change, such as seed=2")
    parser.add_argument("--current-code", action="store_true", help="run the code as it is now, not the snapshot")
    return parser
