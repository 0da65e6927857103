"""``rm`` and ``prune``: runs that are needed no more go from the disk."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.statuses import statuses_of
from launcher.cli.table import table
from launcher.config.units import format_bytes, parse_age
from launcher.errors import UserError
from launcher.records import removal, rundir, sweepdir
from launcher.records.removal import Removal
from launcher.records.rundir import RunDir
from launcher.records.status import UNKNOWN, Status
from launcher.records.sweepdir import SweepDir

_RM = """\
Remove runs, or whole sweeps, from the disk: records, checkpoints, logs and all. Asks first. A run that waits or runs is
never removed, nor one from whose checkpoint another one is to start, nor a directory that is no run."""
_PRUNE = """\
Remove old runs and sweeps from the disk. It lists them with their sizes and asks; without a terminal, and without
--yes, it only lists.

  python -m launcher prune --older 30d
  python -m launcher prune --older 12w --keep-best     all but the best of each task and library, and of each sweep

What waits or runs stays, as do sweeps of which any run does, runs of which that is not known, and runs from whose
checkpoint another one is to start. A run is as old as the last line that was written of it, a sweep as its newest run.
The best run is the one with the highest metric at its end: of a sweep by sweep.metric, of others by checkpoint.best."""


def rm(argv: Sequence[str]) -> int:
    """``rm RUN|SWEEP ... [--yes]``."""
    parser = parser_of("rm", _RM)
    parser.add_argument("runs", nargs="+", metavar="RUN|SWEEP", help=f"{RUN_HELP}; or a sweep's")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options, runs_dir = parse(parser, argv)
    wanted = list({one.name: one for one in (_meant(runs_dir, text) for text in options.runs)}.values())
    for one in wanted:
        _require_removable(one)
    for one, other in removal.needed_by(wanted, runs_dir):
        raise UserError(f"{one.name} is not removed: run {other.run_id} starts from its checkpoint; remove that first")
    return _remove(wanted, runs_dir, yes=options.yes, without_terminal=None)


def _meant(runs_dir: Path, text: str) -> Removal:
    sweep = sweepdir.find(runs_dir, text)
    if sweep is not None:
        return Removal(tuple(map(RunDir, sweep.run_paths())), sweep)
    run = rundir.find(runs_dir, text)
    parent = SweepDir(run.path.parent)
    return Removal((run,), parent if parent.record.exists() else None)


def _require_removable(one: Removal) -> None:
    for path in (*one.paths, *(run.path for run in one.runs)):
        if why := removal.why_not_ours(path):
            raise UserError(f"'{path}' is not removed: {why}")
    for status in statuses_of(one.runs):
        if why := removal.why_not_over(status):
            raise UserError(
                f"run {status.run_id} is not removed: {why}; stop it with: python -m launcher cancel {status.run_id}"
            )


def prune(argv: Sequence[str]) -> int:
    """``prune --older AGE [--keep-best] [--yes]``."""
    parser = parser_of("prune", _PRUNE)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--older", required=True, metavar="AGE", help="such as 12h, 30d, 8w")
    parser.add_argument("--keep-best", action="store_true", help="keep the best of each task and library, and sweep")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options, runs_dir = parse(parser, argv)
    before = time.time() - parse_age(options.older)
    rundir.require_readable(runs_dir)
    removal.finish_interrupted(runs_dir)
    chosen = list(_old(runs_dir, before, removal.best_runs(runs_dir) if options.keep_best else set()))
    while needed := [one for one, _ in removal.needed_by(chosen, runs_dir)]:  # what stays may need others again
        chosen = [one for one in chosen if one not in needed]
    return _remove(chosen, runs_dir, yes=options.yes, without_terminal="nothing is removed: add --yes")


def _old(runs_dir: Path, before: float, kept: set[Path]) -> Iterator[Removal]:
    """What nobody has written to for so long, has ended for certain, and is ours."""
    old = [one for one in removal.groups(runs_dir) if max(map(removal.last_change, one.runs)) < before]
    statuses = {one.run_dir: one for one in statuses_of([run for group in old for run in group.runs])}
    for one in old:
        if all(_is_over(statuses[str(run.path)]) and not removal.why_not_ours(run.path) for run in one.runs):
            runs = tuple(run for run in one.runs if run.path not in kept)
            if runs:
                yield replace(one, runs=runs)


def _is_over(status: Status) -> bool:
    return not status.active and status.state != UNKNOWN


def _remove(chosen: Sequence[Removal], runs_dir: Path, *, yes: bool, without_terminal: str | None) -> int:
    """Say what goes, ask, and remove it. Without anybody to ask: say so, or, where that is no way, fail."""
    if not chosen:
        print(f"nothing to remove in '{runs_dir}'")
        return 0
    sizes = [removal.size_of(one.paths) for one in chosen]
    rows = [(format_bytes(size), _when(one), one.name) for size, one in zip(sizes, chosen)]
    print(table(("SIZE", "LAST WRITTEN", "RUN"), [*rows, (format_bytes(sum(sizes)), "", "in all")]))
    if not yes and not sys.stdin.isatty():
        if without_terminal is None:
            raise UserError("nobody is there to be asked: add --yes to remove it")
        print(without_terminal)
        return 0
    if not yes and input("remove all of it? [y/N] ").strip().lower() not in ("y", "yes"):
        print("nothing is removed")
        return 0
    for one in chosen:
        _remove_one(one)
    print(f"removed {format_bytes(sum(sizes))}")
    return 0


def _remove_one(one: Removal) -> None:
    """It may have been started again while somebody thought about the question."""
    for status in statuses_of(one.runs):
        if why := removal.why_not_over(status):
            raise UserError(f"run {status.run_id} is not removed: by now {why}")
    try:
        removal.remove(one)
    except OSError as error:
        raise UserError(f"{one.name} cannot be removed: {error.strerror}: '{error.filename}'") from error


def _when(one: Removal) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(max(map(removal.last_change, one.runs))))
