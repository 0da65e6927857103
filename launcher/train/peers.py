"""What the ranks tell each other now and then, so that node 0's agent can find the odd one among them."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from launcher.train.digest import digest

_MOST_DATA = 2**20
"""Bytes of early data that are looked at: after them another batch costs nothing."""
_PERIODS = 2
"""Of the agents' samples, from one comparison to the next."""


class EarlyData:
    """A digest of the first data that a rank collects or reads, in order."""

    def __init__(self) -> None:
        self.size = self.digest = 0
        """Bytes that were looked at; their checksum."""

    def add(self, *batch: torch.Tensor) -> None:
        """Look at one more batch, as long as it is early."""
        if self.size < _MOST_DATA:
            self.digest = digest(batch, self.digest)
            self.size += sum(tensor.nbytes for tensor in batch)


class Peers:
    """This rank among the others. Without an agent that wants to know, nothing is compared."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.data = EarlyData()
        self._rank, self._world_size, self._device = rank, world_size, device
        self._every_s = _PERIODS * float(os.environ.get("LAUNCHER_WATCH_SECONDS") or 0)
        self._worked = 0.0
        self._before, self._then = 0, time.monotonic()

    def worked(self, seconds: float) -> None:
        """Of its iteration this rank has spent so long by itself, outside of collectives."""
        self._worked += seconds

    def due(self, iteration: int) -> bool:
        """Whether it is time to compare; rank 0 knows. After the first iteration it is."""
        if self._rank != 0 or not self._every_s or iteration <= self._before:
            return False
        return self._before == 0 or time.monotonic() - self._then >= self._every_s

    def compare(self, iteration: int) -> dict[str, Any]:
        """What each rank says of itself, by rank. Collective."""
        iterations, now = max(1, iteration - self._before), time.monotonic()
        mine = [self._worked / iterations, self.data.size, self.data.digest]
        own = torch.tensor(mine, dtype=torch.float64, device=self._device)  # holds a digest of 32 bits exactly
        everyone = [torch.empty_like(own) for _ in range(self._world_size)]
        dist.all_gather(everyone, own)
        said = torch.stack(everyone).tolist()
        seconds = (now - self._then) / iterations
        self._before, self._then, self._worked = iteration, now, 0.0
        return {
            "iteration": iteration,
            "seconds": round(seconds, 6),
            "worked": [round(worked, 6) for worked, _, _ in said],
            "data": [[int(size), int(checksum)] for _, size, checksum in said],
        }
