"""The table of ``status``: a line per run, and below it what is to be said of some."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from launcher.cli import load
from launcher.cli.rows import Row
from launcher.cli.table import Fit, short, table
from launcher.records.columns import is_number
from launcher.records.nodes import BadNode
from launcher.records.notes import Note
from launcher.records.status import RUNNING, UNKNOWN, Status
from launcher.slurm.hostlist import HostListError, compress, expand
from launcher.slurm.partitions import clock

_HEADINGS = (
    "RUN", "OVERRIDES", "STATE", "CAUSE", "START", "ITERATION", "RETURN", "METRIC", "FRAMES/S", *load.SHORT, "LEFT",
    "JOB", "NODES", "TRY",
)  # fmt: skip
_DISPENSABLE = (
    "JOB", "MEMORY", "CPU", "TRY", "NODES", "FRAMES/S", "START", "GPU", "METRIC", "LEFT", "RETURN", "OVERRIDES",
    "ITERATION",
)  # fmt: skip
"""Where the terminal is too narrow, the first one first: `status RUN` on a wider one has all of them."""
_LONGEST_CAUSE = 96
_LEAST_CAUSE = 32
_SILENT_S = 600.0
"""From here on the newest iteration is no news; that a run may hang its own nodes say, by its own pace."""


def status_table(rows: Sequence[Row], width: int | None, whole: bool = False) -> str:
    """The lines of the table, heading first.

    Args:
        rows: what to show.
        width: of the terminal; None where the output is read by something else.
        whole: leave no cause cut.
    """
    cells = [_cells(row, whole) for row in rows]
    fit = None if width is None or whole else Fit(width, "CAUSE", _LEAST_CAUSE, _DISPENSABLE)
    return table(_HEADINGS, cells, fit)


def _cells(row: Row, whole: bool) -> tuple[str, ...]:
    one = row.status
    cells = (
        one.run_id,
        row.overrides,
        one.state,
        cause(one) if whole else short(cause(one), _LONGEST_CAUSE),
        "" if one.starts_at is None else moment(one.starts_at),
        _progress(one),
        f"{one.return_mean:.1f}" if is_number(one.return_mean) else "",
        row.metric,
        f"{one.fps:,.0f}" if is_number(one.fps) else "",
        *load.short_cells(one.samples),
        "" if one.time_left_s is None else clock(max(one.time_left_s, 0)),
        one.where,
        _nodes(one.nodes),
        str(one.attempts or ""),
    )
    return tuple(map(_printable, cells))


def cause(one: Status) -> str:
    """Why a run is in its state: how old the answer is, what releases it, Slurm's reason, a rank's last words."""
    said = f"as of {moment(one.as_of)}" if one.as_of is not None else ""
    return ": ".join(filter(None, [said, one.release, one.detail or _silence(one, time.time()), one.message]))


def _silence(one: Status, now: float) -> str:
    """Of a running run whose newest iteration is an old one: since when."""
    newest = one.metrics.get("time")
    if one.state != RUNNING or not is_number(newest) or now - newest < _SILENT_S:
        return ""
    return f"no iteration since {moment(newest)}"


def _progress(one: Status) -> str:
    if one.iteration is None:
        return ""
    return f"{one.iteration}/{one.max_iterations}" if one.max_iterations is not None else str(one.iteration)


def _nodes(text: str) -> str:
    """Hosts in Slurm's short form."""
    try:
        return compress(expand(text)) if text else ""
    except HostListError:
        return text


def moment(at: float) -> str:
    """``14:05`` of today, else with the day."""
    then = datetime.fromtimestamp(at)
    return f"{then:%H:%M}" if then.date() == datetime.now().date() else f"{then:%b %d %H:%M}"


def _printable(text: str) -> str:
    """What a rank printed may hold anything, and must not steer the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def node_tables(statuses: Sequence[Status]) -> Iterator[str]:
    """How busy each node of a run is, a table per run that tells."""
    yield from (table(load.HEADINGS, list(map(load.cells, one.samples))) for one in statuses if one.samples)


def remarks(found: Sequence[tuple[str, Note]]) -> Iterator[str]:
    """What people have remarked, each with the id of what it is on."""
    yield from (_printable(f"{name}: note of {note.line()}") for name, note in found)


def notes(statuses: Sequence[Status], failure: str, all_warnings: bool, bad: Sequence[BadNode]) -> Iterator[str]:
    """What is to be said below the table: why answers are old, what is silently wrong, which nodes are avoided.

    Args:
        statuses: the rows'.
        failure: why Slurm did not answer.
        all_warnings: of runs that have ended, too.
        bad: the nodes that runs keep away from.
    """
    if failure and any(one.as_of is not None or one.state == UNKNOWN for one in statuses):
        yield f"Slurm cannot be asked ({failure}): a state with a time is what it said then"
    for one in statuses:
        for warning in one.warnings if one.active or all_warnings else ():
            what = f"{warning['severity']} on {warning['host']}: {warning['message']} [{warning['check']}]"
            yield _printable(f"{one.run_id}: {what}")
    for node in bad:
        until = f"{datetime.fromtimestamp(node.until):%b %d %H:%M}"
        yield f"{node.host} is avoided until {until}: {node.cause.replace('_', ' ')} of run {node.run_id}"
