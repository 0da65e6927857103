"""``logs``: what the ranks of a run printed."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from launcher.cli.first_error import first_errors
from launcher.cli.following import until_over
from launcher.cli.grep import Grep
from launcher.cli.parser import RUN_HELP, Parser, parse, parser_of
from launcher.cli.statuses import statuses_of
from launcher.errors import UserError
from launcher.records import rundir
from launcher.records.files import read_json, tail
from launcher.records.printed import Choice, Piece, Printed, of_all_ranks, of_node, of_rank
from launcher.records.result import read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.records.status import UNKNOWN, Status

_POLL_S = 0.3

_TEXT = """\
What a rank of a run printed, over all its attempts.

  python -m launcher logs RUN                     rank 0
  python -m launcher logs -f RUN                  and on, over requeues, until the run ends
  python -m launcher logs RUN --all               all ranks, each line with its rank
  python -m launcher logs RUN --node gpu02        the ranks of a node, and what torchrun said there
  python -m launcher logs RUN --all --grep 'nan|inf' -C 2
  python -m launcher logs RUN --errors            the first error first, then those that it caused

Logs carry no times. Several of them are put in order by the samples of their nodes, which say every few seconds
(watch.sample_seconds) how long each log is: lines that began between the same two samples stand rank after rank. With
-f new lines stand in the order in which they are seen, within a third of a second."""


def logs(argv: Sequence[str]) -> int:
    """``logs RUN [--rank R | --all] [--node N] [--attempt A] [-f] [--grep PATTERN [-C N]] [--errors]``."""
    options, runs_dir = parse(_parser(), argv)
    run = rundir.find(runs_dir, options.run)
    attempt = _attempt_of(run, options)
    if options.errors:
        _require_alone(options)
        print("\n".join(first_errors(run, attempt)))
        return 0
    shown = _Shown(run, options, attempt)
    shown.update()
    if options.follow:
        _follow(run, shown, attempt)
    shown.update(last=True)
    if options.follow and attempt is None and (result := read_result(run.result)) is not None:
        print(result.line(), file=sys.stderr)  # the last line of a log may be about any moment
    if not shown.anything and options.grep is None:
        _explain_silence(run, shown.whose)
    return 0


def _parser() -> Parser:
    parser = parser_of("logs", _TEXT)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s RUN [-f] [--rank R | --all | --node N] [--attempt A] [--grep PATTERN [-C N] | --errors]"
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0, metavar="R", help="the global rank (default: 0)")
    which.add_argument("--all", action="store_true", help="all ranks, each line with its rank")
    which.add_argument("--node", metavar="N", help="the ranks of a node and its torchrun: its host's name or number")
    parser.add_argument("--attempt", type=int, metavar="A", help="one attempt, counted from 1; -1 is the newest")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run, or that attempt, ends")
    parser.add_argument("--grep", metavar="PATTERN", help="lines that match a regular expression; (?i) ignores case")
    parser.add_argument("-C", "--context", type=int, default=0, metavar="N", help="and N lines of its log around each")
    parser.add_argument("--errors", action="store_true", help="the first error, its traceback, and what it caused")
    return parser


def _attempt_of(run: RunDir, options: argparse.Namespace) -> int | None:
    """The number of the attempt that is wanted, from 0."""
    count = len(run.attempts())
    if options.attempt is None:
        return None
    wanted = options.attempt + count if options.attempt < 0 else options.attempt - 1
    if not 0 <= wanted < count:
        there = f"the attempts 1 to {count}" if count > 1 else "one attempt" if count else "no attempt yet"
        raise UserError(f"run {run.run_id} has {there}, and no attempt {options.attempt}")
    return wanted


def _require_alone(options: argparse.Namespace) -> None:
    if options.follow or options.all or options.node or options.rank or options.grep:
        raise UserError("--errors looks at all ranks, as they are now: it goes with --attempt only")


class _Shown:
    """What is chosen of a run's logs, on standard output."""

    def __init__(self, run: RunDir, options: argparse.Namespace, attempt: int | None) -> None:
        self._several = options.all or options.node is not None
        self._width = len(f"rank {_ranks_of(run) - 1}")
        self.whose = f"node {options.node}" if options.node else "every rank" if options.all else f"rank {options.rank}"
        self._printed = Printed(run, _choice(run, options), attempt)
        self._grep = None if options.grep is None else Grep(_pattern(options.grep), max(0, options.context))
        self._attempt = 0
        self._line_ended = True
        self.anything = False

    def update(self, *, last: bool = False) -> None:
        """Print what is new."""
        for piece in self._printed.new(last=last, whole_lines=self._several or self._grep is not None):
            for text in self._texts(piece):
                self._print(piece.log.attempt, text)
        sys.stdout.flush()

    def _texts(self, piece: Piece) -> list[str]:
        tag = f"{piece.log.name:<{self._width}} | " if self._several else ""
        if self._grep is None:
            return [tag + piece.text]
        return [line if line == Grep.GAP else tag + line for line in self._grep.take(str(piece.log.path), piece.text)]

    def _print(self, attempt: Attempt, text: str) -> None:
        """A line of its own stands before the output of every attempt but the first."""
        if attempt.number != self._attempt:
            self._attempt = attempt.number
            sys.stdout.write(f"{'' if self._line_ended else chr(10)}==> {_title(attempt)} <==\n")
        sys.stdout.write(text)
        self._line_ended, self.anything = text.endswith("\n"), True


def _title(attempt: Attempt) -> str:
    """``attempt 2 · job 4711 · gpu01,gpu02``."""
    start = read_json(attempt.rendezvous) or {}
    job = f"job {start['job_id']}" if start.get("job_id") else ""
    return " · ".join(filter(None, [f"attempt {attempt.number + 1}", job, ",".join(start.get("hosts") or ())]))


def _choice(run: RunDir, options: argparse.Namespace) -> Choice:
    if options.node is not None:
        node = int(options.node) if options.node.isdecimal() else options.node
        if not options.follow:  # that may wait for it
            _require_node(run, node)
        return of_node(node)
    if options.all:
        return of_all_ranks
    ranks = _ranks_of(run)
    if not 0 <= options.rank < ranks:
        raise UserError(f"run {run.run_id} has the ranks 0 to {ranks - 1}, and no rank {options.rank}")
    return of_rank(options.rank)


def _require_node(run: RunDir, node: int | str) -> None:
    starts = [read_json(attempt.rendezvous) or {} for attempt in run.attempts()]
    hosts = sorted({str(host) for start in starts for host in start.get("hosts") or ()})
    numbers = {number for start in starts for number in start.get("nodes") or range(len(start.get("hosts") or ()))}
    if hosts and node not in hosts and node not in numbers:
        raise UserError(f"run {run.run_id} has trained on {', '.join(hosts)}, and not on node '{node}'")


def _ranks_of(run: RunDir) -> int:
    """As its plan has it; where that is damaged, those that have printed."""
    resources = (read_json(run.plan) or {}).get("resources") or {}
    told = resources.get("nodes", 0) * resources.get("nproc_per_node", 0)
    return told or 1 + max((log.rank or 0 for one in run.attempts() for log in of_all_ranks(one)), default=0)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"--grep '{text}' is no regular expression of Python's: {error}") from error


def _follow(run: RunDir, shown: _Shown, attempt: int | None) -> None:
    """Show what is new until the run has ended, whatever attempts and jobs it goes on in; or until one attempt has."""
    said = ""
    for status in until_over(run, shown.update, _POLL_S):
        if attempt is not None and _attempt_over(run.attempts()[attempt]):
            return
        if (words := _words(status)) != said:
            said = words
            print(f"launcher: {said}", file=sys.stderr, flush=True)


def _attempt_over(attempt: Attempt) -> bool:
    return attempt.superseded or attempt.verdict.exists()


def _words(status: Status) -> str:
    """For somebody who waits for lines that do not come."""
    words = ": ".join(part for part in (status.state, status.detail) if part)
    return f"{words}; follows until there is a verdict" if status.state == UNKNOWN else words


def _explain_silence(run: RunDir, whose: str) -> None:
    """Why there is nothing to show, and what the agents printed, which may say more."""
    (one,) = statuses_of([run])
    print(f"{whose} of {run.run_id} has printed nothing ({one.state}{f': {one.detail}' if one.detail else ''})",
          file=sys.stderr)  # fmt: skip
    for path in [run.agent_log, *sorted(run.slurm.glob("*.out"))]:
        sys.stderr.write(tail(path, 4096).decode(errors="replace"))
