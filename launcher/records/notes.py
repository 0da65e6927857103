"""Remarks of people, kept with the records of a run or a sweep: ``notes.jsonl``."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from launcher.records.columns import is_number
from launcher.records.files import Record, append_json_line, read_json_lines

_FILE = "notes.jsonl"


@dataclass(frozen=True)
class Note:
    """What somebody remarked."""

    time: float
    """Seconds since the epoch."""
    user: str
    text: str

    def line(self) -> str:
        """In one line: ``Nov 30 18:15: the reward was wrong (ada)``."""
        return f"{datetime.fromtimestamp(self.time):%b %d %H:%M}: {' '.join(self.text.split())} ({self.user})"


def add_note(directory: Path, user: str, text: str) -> Note:
    """Keep a remark in the directory of a run or a sweep.

    Raises:
        OSError: it cannot be written.
    """
    note = Note(round(time.time(), 3), user, text)
    append_json_line(directory / _FILE, asdict(note))
    return note


def notes_in(directory: Path) -> list[Note]:
    """The remarks on a run or a sweep, the oldest first."""
    return [Note(one["time"], one["user"], one["text"]) for one in read_json_lines(directory / _FILE) if _is_note(one)]


def _is_note(record: Record) -> bool:
    texts = isinstance(record.get("user"), str) and isinstance(record.get("text"), str)
    return texts and is_number(record.get("time"))
