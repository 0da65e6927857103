"""``status --watch``: the table as a screen that follows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.cli.rows import WORST_FIRST, Choice, Row
from launcher.cli.screen import BOLD, DIM, GREEN, PLAIN, RED, YELLOW, Line, Screen
from launcher.cli.status_table import node_tables, notes, status_table
from launcher.cli.statuses import Overview
from launcher.cli.table import short
from launcher.records.nodes import bad_nodes
from launcher.records.result import COMPLETED, FAILED, STOPPED
from launcher.records.status import LOST, PENDING, RUNNING, UNKNOWN

_LOOK_EVERY_S = 2.0
"""At the records; how often Slurm is asked the overview knows."""
_DRAW_EVERY_S = 0.2
_STYLES = {
    RUNNING: GREEN, PENDING: YELLOW, UNKNOWN: YELLOW, LOST: RED, FAILED: RED, STOPPED: DIM, COMPLETED: PLAIN,
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What there was at a moment."""

    rows: Sequence[Row]
    notes: Sequence[str]
    failure: str = ""
    asked_at: float = 0.0
    next_at: float = 0.0


def watch(choice: Choice) -> int:
    """Show the table until the user leaves; returns the exit code.

    Raises:
        KeyboardInterrupt: he did so with Ctrl-C.
        UserError: what is named is not there.
    """
    looking = _Looking(lambda overview: _see(choice, overview))
    with Screen() as screen:
        while screen.key(_DRAW_EVERY_S) != "q":
            seen = looking.seen()
            screen.draw(picture(seen, time.time(), screen.size.columns, screen.size.lines))
    return 0


def _see(choice: Choice, overview: Overview) -> Seen:
    rows = sorted(choice.rows(overview, time.time()), key=_place)
    statuses = [row.status for row in rows]
    said = list(notes(statuses, "", False, bad_nodes(choice.runs_dir)))
    return Seen(rows, said, overview.failure, overview.asked_at, overview.next_at)


def _place(row: Row) -> tuple[int, float]:
    """What goes on or waits as it was submitted, what has ended with the newest first."""
    one = row.status
    return WORST_FIRST.index(one.state), 0.0 if one.active else -one.changed_at


class _Looking:
    """Looks again and again in a thread of its own: an answer that takes long keeps nobody from leaving."""

    def __init__(self, see: Callable[[Overview], Seen]) -> None:
        self._see, self._seen, self._error = see, None, None
        self._seen: Seen | None
        self._error: BaseException | None
        threading.Thread(target=self._run, daemon=True).start()

    def seen(self) -> Seen | None:
        """The newest; None before the first.

        Raises:
            UserError: what is named is not there.
        """
        if self._error is not None:
            raise self._error
        return self._seen

    def _run(self) -> None:
        overview = Overview()
        while self._error is None:
            try:
                self._seen = self._see(overview)
            except FileNotFoundError:
                pass  # a run is just being removed: the next look does without it
            except Exception as error:
                self._error = error
            time.sleep(_LOOK_EVERY_S)


def picture(seen: Seen | None, now: float, width: int, height: int) -> list[Line]:
    """The lines of the screen: how many are in which state, the table as far as it fits, what is to be said of it."""
    if seen is None:
        return [("looking …", DIM)]
    when = time.strftime("%H:%M:%S", time.localtime(now))
    head = [(short(f"{when}{_slurm(seen, now)} · {_counts(seen.rows) or 'no runs'}", width), BOLD)]
    said = [f"Slurm cannot be asked: {seen.failure}"] if seen.failure else []
    below = [(short(note, width), YELLOW) for note in [*said, *seen.notes][: max(height // 4, 1)]]
    room = height - len(head) - len(below) - 2  # a blank line, and the headings
    if not seen.rows or room < 1:
        return [*head, *below]
    shown = seen.rows if len(seen.rows) <= room else seen.rows[: room - 1]
    heading, *lines = status_table(shown, width).split("\n")
    table = [(line, _STYLES.get(row.status.state, PLAIN)) for line, row in zip(lines, shown)]
    more = seen.rows[len(shown) :]
    rest = [(f"… and {_counts(more)}", DIM)] if more else []
    return [
        *head,
        ("", PLAIN),
        (heading, BOLD),
        *table,
        *rest,
        *_nodes([] if more else shown, room - len(shown)),
        *below,
    ]


def _nodes(rows: Sequence[Row], room: int) -> list[Line]:
    """Of a run that is looked at alone how busy its nodes are, as far as there is room."""
    alone = [row.status for row in rows] if len(rows) == 1 else []
    return [(line, PLAIN) for text in node_tables(alone) for line in ("", *text.split("\n"))][: max(room, 0)]


def _counts(rows: Sequence[Row]) -> str:
    counts = Counter(row.status.state for row in rows)
    return " · ".join(f"{counts[state]} {state}" for state in WORST_FIRST if counts[state])


def _slurm(seen: Seen, now: float) -> str:
    """How old Slurm's answer is, or when it is asked again."""
    if not seen.asked_at:
        return ""
    if seen.failure:
        return f" · Slurm cannot be asked, again in {max(0, round(seen.next_at - now))} s"
    return f" · Slurm {max(0, round(now - seen.asked_at))} s ago"
