"""Lines that match, with some around them, of several logs at once."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field


@dataclass
class _OfLog:
    """What has been seen of one log."""

    before: deque[str]
    number: int = 0
    shown: int = 0
    """The number of the last line that was shown, from 1."""
    wanted: int = 0
    """How many lines are still to be shown after a match."""


@dataclass
class Grep:
    """Picks lines as ``grep -C`` does; what stands around a match is taken from the same log."""

    GAP = "--\n"
    """Between groups of lines that do not follow each other; only where there is context."""

    pattern: re.Pattern[str]
    context: int = 0
    _logs: dict[str, _OfLog] = field(default_factory=dict)
    _last: str | None = None
    """The log of which the last line was shown."""

    def take(self, log: str, line: str) -> list[str]:
        """Take in a line of a log; returns what is to be shown now."""
        seen = self._logs.setdefault(log, _OfLog(deque(maxlen=self.context)))
        seen.number += 1
        if self.pattern.search(line.rstrip("\n")):
            seen.wanted = self.context
            lines = [*seen.before, line]
        elif seen.wanted:
            seen.wanted -= 1
            lines = [line]
        else:
            seen.before.append(line)
            return []
        gap = self.context and self._last is not None
        gap = gap and (self._last != log or seen.shown < seen.number - len(lines))
        seen.before.clear()
        seen.shown, self._last = seen.number, log
        return [self.GAP, *lines] if gap else lines
