"""The errors of a run, the first one first: ``logs --errors``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from launcher.records.files import tail
from launcher.records.printed import Log, of_all_ranks
from launcher.records.result import COMPLETED, Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.records.story import Words, ends_of_ranks, words_of
from launcher.records.traceback_text import last_error

_MOST_RANKS = 8
"""Of which the last words are shown, where nobody has judged which one failed first."""


def first_errors(run: RunDir, attempt: int | None = None) -> Iterator[str]:
    """Of each attempt that failed, or of one: who failed first, its traceback, then the ends of the others.

    In an attempt without a verdict, the ranks that have printed an exception, whether they have ended or not.
    """
    found = False
    for one in run.attempts():
        if attempt in (None, one.number):
            for line in _of_attempt(one):
                found = True
                yield line
    if not found:
        yield f"no rank of {run.run_id} has failed, and no log holds an exception near its end"


def _of_attempt(attempt: Attempt) -> Iterator[str]:
    verdict, ends = read_result(attempt.verdict), ends_of_ranks(attempt)
    if verdict is None and not ends:
        yield from _unjudged(attempt)
    elif ends or (verdict is not None and verdict.log):
        yield _heading(attempt, verdict)
        if verdict is not None and (words := words_of(verdict)):
            yield from _quoted(words)
        yield from (f"  {moment.seconds:>8.1f} s  {moment.text}" for moment in ends)


def _heading(attempt: Attempt, verdict: Result | None) -> str:
    what = verdict.attempt_line() if verdict is not None and verdict.outcome != COMPLETED else "ranks that failed"
    return f"attempt {attempt.number + 1}: {what}"


def _quoted(words: Words) -> Iterator[str]:
    yield f"  {words.log}"
    yield textwrap.indent(words.traceback or words.last_lines, "    ")


def _unjudged(attempt: Attempt) -> Iterator[str]:
    said = [(log, words) for log in of_all_ranks(attempt) if (words := _exception_at_the_end_of(log))]
    if said:
        yield f"attempt {attempt.number + 1}: no verdict; near the end of {len(said)} ranks' logs stands an exception"
    for _, words in said[:_MOST_RANKS]:
        yield from _quoted(words)


def _exception_at_the_end_of(log: Log) -> Words | None:
    if not last_error(tail(log.path).decode(errors="replace")):
        return None
    return words_of(Result("", "", log=str(log.path)))
