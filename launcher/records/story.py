"""The story of a run, from its records: what happened when on which node, and what the first failed rank said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.records.columns import is_number
from launcher.records.events import Event, ends, texts
from launcher.records.files import parse_json_line, read_json_lines, tail
from launcher.records.result import FAILED, Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.records.traceback_text import last_traceback

_TOLD_ELSEWHERE = ("attempt", "verdict")
"""At the beginning and the end of a chapter."""
_MOST_MOMENTS = 24
_MOST_LINES = 40
_LAST_LINES = 10
"""Of a log without a traceback."""
_BEFORE_S = 60.0
"""How far back samples tell what led to the end."""


@dataclass(frozen=True)
class Moment:
    """Something that happened in an attempt."""

    seconds: float
    """Since the attempt began."""
    text: str


@dataclass(frozen=True)
class Chapter:
    """An attempt."""

    number: int
    """From 1, as people count."""
    began: float | None
    """Seconds since the epoch; None where node 0 could write nothing down."""
    job_id: str | None
    hosts: Sequence[str]
    moments: Sequence[Moment]
    ended: str
    """Its verdict in a line; empty while it goes on, or where none was left."""
    then: str
    hint: str
    """What to do about it, of one that failed; the end of the run has its own."""
    known: str
    """The id of its reason, where it is one of :mod:`launcher.records.known`."""


@dataclass(frozen=True)
class Words:
    """What the first failed rank said at its end."""

    log: str
    traceback: str
    """Empty where its log has none."""
    last_lines: str
    """The end of the log, where there is no traceback."""


@dataclass(frozen=True)
class Samples:
    """How busy a node was towards a moment: the first and the last sample of that time."""

    host: str
    first: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)


def chapters(run: RunDir) -> list[Chapter]:
    """All attempts, the oldest first."""
    return [_chapter(attempt) for attempt in run.attempts()]


def _chapter(attempt: Attempt) -> Chapter:
    events = _events(attempt)
    start = next((event for event in events if event["event"] == "attempt"), {})
    began = start.get("time")
    moments = sorted(_moments(events, began or 0.0), key=lambda moment: moment.seconds)
    verdict = read_result(attempt.verdict)
    return Chapter(
        number=attempt.number + 1,
        began=began,
        job_id=start.get("job_id"),
        hosts=_hosts(events),
        moments=_not_too_many(moments),
        ended=verdict.attempt_line() if verdict else "",
        then=verdict.then if verdict else "",
        hint=verdict.hint if verdict and verdict.outcome == FAILED else "",
        known=verdict.known if verdict else "",
    )


def _events(attempt: Attempt) -> list[Event]:
    """The events of an attempt that say what they are and when they were."""
    events = read_json_lines(attempt.events)
    return [one for one in events if isinstance(one.get("event"), str) and is_number(one.get("time"))]


def _not_too_many(moments: list[Moment]) -> list[Moment]:
    if len(moments) <= _MOST_MOMENTS:
        return moments
    left_out = Moment(moments[_MOST_MOMENTS - 1].seconds, f"… and {len(moments) - _MOST_MOMENTS} more in events.jsonl")
    return [*moments[:_MOST_MOMENTS], left_out]


def _moments(events: Sequence[Event], began: float) -> Iterator[Moment]:
    hosts = _hosts(events)
    for event in events:
        for text in [] if event["event"] in _TOLD_ELSEWHERE else texts(event, hosts):
            yield Moment(round(event["time"] - began, 1), text)
    for time, text in ends(_failures(events)):
        yield Moment(round(time - began, 1), text)


def ends_of_ranks(attempt: Attempt) -> list[Moment]:
    """How the ranks of an attempt that did not end well ended, the first one first; those alike are one moment."""
    events = _events(attempt)
    began = next((event["time"] for event in events if event["event"] == "attempt"), 0.0)
    return [Moment(round(time - began, 1), text) for time, text in ends(_failures(events))]


def _failures(events: Sequence[Event]) -> list[Event]:
    return [one for event in events for one in event.get("failures") or []]


def _hosts(events: Sequence[Event]) -> list[str]:
    """Of the allocation, by the number of the node."""
    return next((event.get("hosts") or [] for event in events if event["event"] == "attempt"), [])


def words_of(result: Result) -> Words | None:
    """What the rank that a verdict names said at its end; None where there is no such rank, or no log."""
    if result.log is None or not (text := tail(Path(result.log)).decode(errors="replace")):
        return None
    traceback = _shortened(last_traceback(text).splitlines())
    last_lines = "" if traceback else "\n".join(text.rstrip().splitlines()[-_LAST_LINES:])
    return Words(result.log, traceback, last_lines)


def _time_of(sample: Mapping[str, Any]) -> float:
    return sample["time"] if is_number(sample.get("time")) else 0.0


def _shortened(lines: list[str]) -> str:
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES // 4], "  …", *lines[-_MOST_LINES * 3 // 4 :]]
    return "\n".join(lines)


def samples_before(attempt: Attempt, host: str | None, until: float) -> Samples | None:
    """The samples of a host, by default of the first one, in the minute that ended at a moment; None without any."""
    hosts = _hosts(_events(attempt))
    host = host or (hosts[0] if hosts else "")
    if host not in hosts:
        return None
    parsed = filter(None, map(parse_json_line, tail(attempt.samples(hosts.index(host))).splitlines()))
    near = [one for one in parsed if until - _BEFORE_S <= _time_of(one) <= until + 1.0]
    return Samples(host, near[0], near[-1]) if near else None


def ended_at(attempt: Attempt) -> float | None:
    """When the first rank of an attempt failed, or else when it was judged; None while it goes on."""
    events = _events(attempt)
    failures = [one["ended"] for one in _failures(events)]
    judged = [event["time"] for event in events if event["event"] == "verdict"]
    return min([*failures, *judged], default=None)
