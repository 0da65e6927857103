"""``status``: what runs, how far it is, how it ended."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.rows import Choice, Row
from launcher.cli.status_table import node_tables, notes, remarks, status_table
from launcher.cli.statuses import Overview
from launcher.config.units import parse_age
from launcher.errors import UserError
from launcher.records.columns import finite
from launcher.records.nodes import bad_nodes
from launcher.records.reading import find_sweep


def status(argv: Sequence[str]) -> int:
    """``status [RUN|SWEEP ...] [--watch|--json] [--sweep S] [--since 2d] [--failed]``: a table of runs."""
    parser = parser_of("status", "What runs, how far it is, what it waits for, how it ended.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{RUN_HELP}; or a sweep's, for a table of its runs")
    parser.add_argument("--watch", action="store_true", help="a screen that follows; q or Ctrl-C leaves it")
    parser.add_argument("--json", action="store_true", help="for programs: a list of objects (docs/status.md)")
    parser.add_argument("--sweep", metavar="S", action="append", default=[], help="the runs of a sweep")
    parser.add_argument("--since", metavar="2d", help="what goes on, or changed in so many m, h, d or w")
    parser.add_argument("--failed", action="store_true", help="what failed or was lost; of sweeps, too")
    options, runs_dir = parse(parser, argv)
    for text in options.sweep:
        find_sweep(runs_dir, text)
    choice = Choice(
        runs_dir,
        [*options.runs, *options.sweep],
        options.failed,
        None if options.since is None else parse_age(options.since),
    )
    if options.watch:
        return _watch(choice, options.json)
    overview = Overview()
    rows = choice.rows(overview, time.time())
    if options.json:
        print(json.dumps(finite([asdict(row.status) | {"overrides": row.overrides} for row in rows]), indent=2))
    else:
        _print(choice, rows, overview.failure)
    return 0


def _watch(choice: Choice, as_json: bool) -> int:
    from launcher.cli.status_watch import watch

    if as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise UserError("status --watch needs a terminal; for programs there is status --json")
    return watch(choice)


def _print(choice: Choice, rows: Sequence[Row], failure: str) -> None:
    statuses = [row.status for row in rows]
    if rows:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(status_table(rows, width, whole=len(rows) == 1))
        for nodes in node_tables(statuses if choice.runs else ()):
            print(f"\n{nodes}")
    else:
        print(f"no runs{' of that kind' if choice.failed or choice.since_s is not None else ''} in '{choice.runs_dir}'")
    for remark in remarks(choice.notes(rows)):
        print(remark)
    for note in notes(statuses, failure, bool(choice.runs), bad_nodes(choice.runs_dir)):
        print(note)
