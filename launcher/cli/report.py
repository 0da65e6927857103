"""``report``: a run or a sweep as one page to look at, to keep and to send."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.rows import rows_of, summary
from launcher.cli.statuses import statuses_of
from launcher.errors import UserError
from launcher.records import rundir, sweepdir
from launcher.records.files import Record, read_json
from launcher.records.rundir import RunDir
from launcher.records.scaling import asked_of
from launcher.records.sweepdir import SweepDir
from launcher.report.page import Page, html
from launcher.report.run import run_page
from launcher.report.sweep import sweep_page

_TEXT = """\
A run or a sweep as one HTML page: curves of return and throughput with the attempts marked, use of GPUs and hosts,
what happened when on which node, the verdict, configuration and provenance; of a sweep a table to sort, and what the
objective depends on; of a benchmark what it has found, with more ranks, too (`bench scaling`). The page is one file
that loads nothing, so that it can be mailed, archived and read on a phone.

  python -m launcher report RUN                    writes RUN.html, here
  python -m launcher report SWEEP -o sweep.html
  python -m launcher report RUN -o - > page.html   to standard output

It works for what still goes on, too: the page shows it as it is now. It holds names of hosts and users, the command,
the configuration and the end of a failed rank's log; values whose names say that they are secret are left out."""


def report(argv: Sequence[str]) -> int:
    """``report RUN|SWEEP [-o FILE]``: write the page."""
    parser = parser_of("report", _TEXT)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", metavar="RUN|SWEEP", help=f"{RUN_HELP}; or a sweep's")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to write it (default: RUN.html, - is standard output)"
    )
    options, runs_dir = parse(parser, argv)
    page = _page(options.run, runs_dir)
    _write(html(page), options.output or f"{page.title}.html")
    return 0


def _page(text: str, runs_dir: Path) -> Page:
    sweep = sweepdir.find(runs_dir, text)
    if sweep is None:
        run = rundir.find(runs_dir, text)
        return run_page(statuses_of([run])[0], _bundle(run))
    statuses = [row.status for row in rows_of(sweep)]
    return sweep_page(sweep, summary(sweep, statuses), statuses, _scaling(sweep))


def _bundle(run: RunDir) -> Record | None:
    """Of a benchmark that has ended, what it has found."""
    if not ((read_json(run.plan) or {}).get("training") or {}).get("bench"):
        return None
    from launcher.cli.bench_runs import bundle_if_ended

    return bundle_if_ended(run)


def _scaling(sweep: SweepDir) -> Record | None:
    """Of a benchmark of scaling, what it has shown until now."""
    if asked_of(sweep) is None:
        return None
    from launcher.cli.bench_scaling import found_in

    return found_in(sweep)


def _write(text: str, output: str) -> None:
    data = text.encode(errors="replace")  # what a rank printed, or a word of a command, may be no UTF-8
    if output == "-":
        sys.stdout.buffer.write(data + b"\n")
        return
    try:
        Path(output).write_bytes(data)
    except OSError as error:
        raise UserError(f"cannot write '{output}': {error.strerror}; choose another file with -o FILE") from error
    print(f"{output}: {len(data) / 1e6:.1f} MB; open it in a browser")
