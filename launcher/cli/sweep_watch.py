"""Following a sweep: one line that says how far its runs are."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from launcher.cli.following import Following
from launcher.cli.live import LiveLine
from launcher.records.rundir import RunDir
from launcher.records.status import UNKNOWN
from launcher.submission.local import Foreground

_LOOK_EVERY_S = 2.0


class Tally:
    """Counts the runs of a sweep; those that have ended are looked at no more."""

    def __init__(self, runs: Sequence[RunDir]) -> None:
        self._total, self._following = len(runs), Following(runs)
        self._line = LiveLine()
        self._looked = 0.0

    def update(self) -> None:
        """Look again, now and then."""
        if time.monotonic() - self._looked > _LOOK_EVERY_S:
            self.look()

    def look(self) -> bool:
        """Look again; returns whether there are runs that have not ended."""
        self._looked = time.monotonic()
        states = Counter(status.state for status in self._following.look())
        self._line.show(self._text(states))
        return bool(states)

    def say(self, text: str) -> None:
        self._line.say(text)

    def close(self) -> None:
        """Leave the line on the terminal."""
        self._line.close()

    def _text(self, states: Counter[str]) -> str:
        over = Counter(status.state for status in self._following.ended)
        others = states + Counter({UNKNOWN: over.pop(UNKNOWN, 0)})  # of a queue that was stopped: never started
        ended, waiting = (
            ", ".join(f"{count} {state}" for state, count in sorted(some.items())) for some in (over, others)
        )
        parts = [f"{over.total()} of {self._total} runs have ended", ended, waiting]
        return " · ".join(part for part in parts if part)


def follow_batch(agent: Foreground, runs: Sequence[RunDir]) -> None:
    """Show the runs of this machine until the last has ended; Ctrl-C has them save and stop."""
    tally = Tally(runs)
    agent.wait(tally.update, lambda: tally.say("stopping: the runs save and end (Ctrl-C again to stop at once)"))
    tally.look()
    tally.close()


def follow_jobs(runs: Sequence[RunDir], cancel: str) -> None:
    """Show the runs until all of them have ended for good.

    Raises:
        KeyboardInterrupt: the user stops following; the runs go on.
    """
    tally = Tally(runs)
    try:
        while tally.look():
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        tally.close()
        print(f"the runs go on; stop them with: {cancel}", file=sys.stderr)
        raise
    tally.close()
