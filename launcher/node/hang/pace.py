"""How long a run may stand still before that is strange: a rule over its own pace. No clock, no side effects."""

from __future__ import annotations

from launcher.plan.plan import Patience

_TIMES = 5
"""So many times the longest pause seen is a suspicion."""
_EARLY_MOVES = 5
"""Before so many moves a run is still starting: it imports, compiles, fills its buffers."""
_SETTLED_MOVES = 25
"""After so many the pauses between the first ones are forgotten: that of a first iteration does not come again."""
_LATER = 2
"""The end is never sooner than at so many times the limit of the suspicion."""


class Pace:
    """The pauses of a run so far."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._moves = 0
        self._early = self._longest = 0.0
        self.idle_s = 0.0
        """Since the run last moved."""

    def passed(self, seconds: float, *, moved: bool, works: bool = False) -> None:
        """So much time has passed, in which the run moved, or at least works, or did neither."""
        self.idle_s += seconds
        if not moved:
            self.idle_s = 0.0 if works else self.idle_s
            return
        if self._moves:  # the time before the first move is no pause
            early = self._moves < _EARLY_MOVES
            self._early = max(self._early, self.idle_s) if early else self._early
            self._longest = self._longest if early else max(self._longest, self.idle_s)
        self._moves += 1
        self.idle_s = 0.0

    @property
    def suspect_s(self) -> float:
        """Without a move for so long the run is suspected to hang."""
        patience, starting = self._patience, self._moves < _EARLY_MOVES
        longest = self._longest if self._moves >= _SETTLED_MOVES else max(self._early, self._longest)
        limit = min(patience.ceiling_s, _TIMES * longest)
        return max(patience.floor_s, patience.first_s if starting else 0.0, limit)

    @property
    def end_s(self) -> float | None:
        """And for so long it is ended; None: never."""
        return None if self._patience.end_s is None else max(self._patience.end_s, _LATER * self.suspect_s)
