"""``logs``: what the ranks of a run printed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.statuses import statuses_of
from launcher.cli.watch import LogReader
from launcher.errors import UserError
from launcher.records import rundir
from launcher.records.files import read_json, tail
from launcher.records.rundir import RunDir

_POLL_S = 0.3
_ASK_SLURM_S = 2.0


def logs(argv: Sequence[str]) -> int:
    """``logs RUN [--rank R] [-f]``: what a rank printed."""
    parser = parser_of("logs", "What a rank of a run printed, over all its attempts.")
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="the global rank (default: 0)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    options, runs_dir = parse(parser, argv)
    run = rundir.find(runs_dir, options.run)
    _require_rank(run, options.rank)
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


def _require_rank(run: RunDir, rank: int) -> None:
    resources = (read_json(run.plan) or {})["resources"]
    ranks = resources["nodes"] * resources["nproc_per_node"]
    if not 0 <= rank < ranks:
        raise UserError(f"run {run.run_id} has the ranks 0 to {ranks - 1}, and no rank {rank}")


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
