"""What happened when on which node: from events.jsonl and verdict.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.records.columns import is_number
from launcher.records.durations import duration
from launcher.records.events import line
from launcher.records.files import Record
from launcher.records.reading import Run, Try
from launcher.records.result import COMPLETED, STOPPED
from launcher.report.curves import ended
from launcher.report.page import BAD, BUSY, GOOD, QUIET, WARN, Block, Chart, Grid, Section, Words, few

_MOST_LANES = 100
_MOST_EVENTS = 500
_JOB = "run"
"""The lane of what concerns no single node."""


def timeline_section(run: Run, began: float) -> Section:
    """Bars for the attempts on each node, marks for what was seen, and the same as tables."""
    if not run.attempts:
        return Section("What happened", [Words("It has not started yet: there is no attempt on record.")])
    lanes = list(dict.fromkeys([_JOB, *(host for one in run.attempts for host in one.hosts)]))
    shown = lanes[:_MOST_LANES]
    bars = [bar for one in run.attempts for bar in _bars(one, began, shown)]
    marks = [mark for one in run.attempts for event in one.events for mark in _marks(one, event, began, shown)]
    data = {"lanes": shown, "bars": [*_waits(run, began), *bars], "marks": marks}
    blocks: list[Block] = [
        Chart("timeline", "Nodes over time", data, "full", 110 + min(30, 900 // len(shown) + 3) * len(shown)),
        _attempts(run, began),
    ]
    if len(lanes) > len(shown):
        blocks.append(Words(f"The first {len(shown)} of {len(lanes)} lanes are drawn."))
    return Section("What happened", blocks)


def events_section(run: Run, began: float) -> Section:
    """All events as a table."""
    rows = [
        (_seconds(event, began), one.number + 1, _host(one, event), str(event.get("event", "")), _words(one, event))
        for one in run.attempts
        for event in one.events
    ]
    left = len(rows) - _MOST_EVENTS
    note = [Words(f"The last {_MOST_EVENTS} events; {left} older ones are in events.jsonl.")] if left > 0 else []
    table = Grid("events", ("seconds", "attempt", "host", "event", "what"), rows[-_MOST_EVENTS:], _TONE_OF,
                 numbered=frozenset((0, 1)))  # fmt: skip
    return Section("Events", [*note, table if rows else Words("No events are on record.")], folded=True)


def _seconds(event: Record, began: float) -> float | None:
    time = event.get("time")
    return round(time - began, 1) if is_number(time) else None


def _attempts(run: Run, began: float) -> Grid:
    rows = [
        (
            one.number + 1,
            None if one.began is None else round(one.began - began, 1),
            few(one.hosts),
            one.start.get("resumed_at"),
            one.verdict.progress if one.verdict else None,
            one.verdict.seconds if one.verdict else None,
            one.verdict.outcome if one.verdict else "",
            one.verdict.cause.replace("_", " ") if one.verdict else "",
            one.verdict.then if one.verdict else "",
        )
        for one in run.attempts
    ]
    headings = ("attempt", "began, s", "nodes", "from iteration", "iterations", "seconds", "outcome", "cause", "then")
    tones = {"completed": GOOD, "failed": BAD, "stopped": WARN}
    return Grid("attempts", headings, rows, tones, numbered=frozenset((0, 1, 3, 4, 5)))


def _bars(one: Try, began: float, lanes: Sequence[str]) -> list[Mapping[str, Any]]:
    if one.began is None:
        return []
    span = [one.began - began, ended(one) - began]
    trained = set(one.start.get("hosts") or [])
    tone = tone_of(one)
    told = f"attempt {one.number + 1}" + (f": {one.verdict.cause.replace('_', ' ')}" if one.verdict else "")
    return [
        {
            "lane": lanes.index(host),
            "span": span,
            "tone": tone if host in trained or not trained else QUIET,
            "label": f"{one.number + 1}",
            "text": f"{told}, {duration(span[1] - span[0])}" + ("" if host in trained or not trained else ", spare"),
        }
        for host in one.hosts
        if host in lanes
    ]


def tone_of(one: Try) -> str:
    """The colour of an attempt: by its outcome, while it goes on by that."""
    if one.verdict is None:
        return BUSY
    return {COMPLETED: GOOD, STOPPED: WARN}.get(one.verdict.outcome, BAD)


def _waits(run: Run, began: float) -> list[Mapping[str, Any]]:
    """Between the attempts, and before the first: the queue, or the start of the agents."""
    ends = [began, *(ended(one) for one in run.attempts)]
    starts = [one.began for one in run.attempts]
    return [
        {
            "lane": 0,
            "span": [end - began, start - began],
            "tone": QUIET,
            "label": "",
            "text": f"waited {duration(start - end)}",
        }
        for end, start in zip(ends, starts)
        if start is not None and start - end > 0.5
    ]  # fmt: skip


def _marks(one: Try, event: Record, began: float, lanes: Sequence[str]) -> list[Mapping[str, Any]]:
    host, kind = _host(one, event), str(event.get("event", ""))
    if kind in _BORING or (kind == "preflight" and not event.get("findings")) or not is_number(event.get("time")):
        return []
    lane = lanes.index(host) if host in lanes else 0
    facts = {"lane": lane, "at": event["time"] - began, "tone": _tone(event), "name": kind.replace("_", " ")}
    return [{**facts, "text": _words(one, event)}]


_BORING = {"attempt", "start"}
"""They are where the bars begin."""
_TONE_OF = {
    "lost": BAD,
    "hang": BAD,
    "suspicion": WARN,
    "warning": WARN,
    "stop": WARN,
    "asked": WARN,
    "passed_over": WARN,
}


def _tone(event: Record) -> str:
    kind, outcome = event.get("event"), event.get("outcome")
    if kind == "ended":
        return BAD if event.get("code") else GOOD
    if kind == "verdict":
        return {COMPLETED: GOOD, STOPPED: WARN}.get(str(outcome), BAD)
    severities = {one.get("severity") for one in event.get("findings") or [] if isinstance(one, dict)}
    found = BAD if "error" in severities else WARN if severities else QUIET
    return _TONE_OF.get(str(kind), found)


def _host(one: Try, event: Record) -> str:
    if isinstance(event.get("host"), str):
        return event["host"]
    node = event.get("node")
    return one.hosts[node] if isinstance(node, int) and 0 <= node < len(one.hosts) else _JOB


_LONGEST = 300


def _words(one: Try, event: Record) -> str:
    text = line(event, one.hosts)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
