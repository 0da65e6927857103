"""Returns and lengths of the last episodes, measured alike for every library and across a resume."""

from __future__ import annotations

from collections import deque
from statistics import fmean
from typing import Any

import numpy as np

_WINDOW = 100
"""Over how many episodes the means are taken, as in RSL-RL, rl_games and skrl."""


class Episodes:
    """The episodes of one rank's environments: those that are under way and the last ones that ended."""

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs)
        self._ended: deque[tuple[float, float]] = deque(maxlen=_WINDOW)

    def add(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        """Take in one step of all environments; the rewards are unscaled."""
        self._returns += rewards
        self._lengths += 1
        self._ended.extend(zip(self._returns[dones].tolist(), self._lengths[dones].tolist()))
        self._returns[dones] = self._lengths[dones] = 0

    @property
    def return_mean(self) -> float | None:
        """None as long as no episode has ended."""
        return fmean(reached for reached, _ in self._ended) if self._ended else None

    @property
    def length_mean(self) -> float | None:
        """None as long as no episode has ended."""
        return fmean(length for _, length in self._ended) if self._ended else None

    def get_state(self) -> dict[str, Any]:
        """Where the measurement stands, in plain values."""
        running = {"returns": self._returns.tolist(), "lengths": self._lengths.tolist()}
        return {**running, "ended": [list(episode) for episode in self._ended]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from where :meth:`get_state` found it."""
        self._returns, self._lengths = np.array(state["returns"]), np.array(state["lengths"])
        self._ended = deque(((reached, length) for reached, length in state["ended"]), maxlen=_WINDOW)
