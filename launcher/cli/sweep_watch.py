"""Following a sweep: one line that says how far its runs are."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from launcher.cli.live import LiveLine
from launcher.cli.statuses import statuses_of
from launcher.records.rundir import RunDir
from launcher.records.status import PENDING, RUNNING, VERDICT_S
from launcher.submit.local import Foreground

_LOOK_EVERY_S = 2.0


class Tally:
    """Counts the runs of a sweep; those that have ended are looked at no more."""

    def __init__(self, runs: Sequence[RunDir]) -> None:
        self._total, self._open = len(runs), list(runs)
        self._ended: Counter[str] = Counter()
        self._line = LiveLine()
        self._looked = 0.0

    def update(self) -> None:
        """Look again, now and then."""
        if time.monotonic() - self._looked > _LOOK_EVERY_S:
            self.look()

    def look(self) -> int:
        """Look again; returns how many runs wait, run, or may still leave a verdict."""
        self._looked = time.monotonic()
        statuses = dict(zip(self._open, statuses_of(self._open)))
        for run, status in statuses.items():
            if not status.active and run.result.exists():
                self._open.remove(run)
                self._ended[status.state] += 1
        states = Counter(statuses[run].state for run in self._open)
        self._line.show(self._text(states))
        return states[RUNNING] + states[PENDING]

    def say(self, text: str) -> None:
        self._line.say(text)

    def close(self) -> None:
        """Leave the line on the terminal."""
        self._line.close()

    @property
    def all_ended(self) -> bool:
        return not self._open

    def _text(self, states: Counter[str]) -> str:
        ended = ", ".join(f"{count} {state}" for state, count in sorted(self._ended.items()))
        waiting = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        parts = [f"{self._ended.total()} of {self._total} runs have ended", ended, waiting]
        return " · ".join(part for part in parts if part)


def follow_batch(agent: Foreground, runs: Sequence[RunDir]) -> None:
    """Show the runs of this machine until the last has ended; Ctrl-C has them save and stop."""
    tally = Tally(runs)
    agent.wait(tally.update, lambda: tally.say("stopping: the runs save and end (Ctrl-C again to stop at once)"))
    tally.look()
    tally.close()


def follow_jobs(runs: Sequence[RunDir], cancel: str) -> None:
    """Show the runs until none of them waits or runs any more.

    Raises:
        KeyboardInterrupt: the user stops following; the runs go on.
    """
    tally, idle_since = Tally(runs), None
    try:
        while not tally.all_ended and (idle_since is None or time.monotonic() - idle_since < VERDICT_S):
            active = tally.look()
            idle_since = None if active else idle_since or time.monotonic()
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        tally.close()
        print(f"the runs go on; stop them with: {cancel}", file=sys.stderr)
        raise
    tally.close()
