"""Checkpoints as a rank sees them: the one to go on from, and a place to save the next."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from launcher.records import checkpoints
from launcher.records.checkpoints import Checkpoint

State = dict[str, Any]


class Checkpoints:
    """Atomic, sealed checkpoints of the run."""

    def __init__(self, rank: int, world_size: int, keep: int, barrier: Callable[[], None]) -> None:
        """Outside of the launcher nothing is saved and nothing is found."""
        directory = os.environ.get("LAUNCHER_CHECKPOINT_DIR")
        self._directory = Path(directory) if directory else None
        self._rank, self._world_size, self._keep, self._barrier = rank, world_size, keep, barrier

    def latest(self) -> Checkpoint | None:
        """The checkpoint to go on from, the same for all ranks: the agents chose it before the start."""
        chosen = os.environ.get("LAUNCHER_RESUME")
        return checkpoints.read(Path(chosen)) if chosen else None

    def load(self, device: torch.device) -> tuple[State, State | None] | None:
        """The common state and this rank's own, or None at a fresh start.

        With another number of ranks than at the time of the save nobody's own state fits, and it is None. Only
        tensors and plain values are read: a pickle could run any code.
        """
        found = self.latest()
        if found is None:
            return None
        state = torch.load(found.state, map_location=device, weights_only=True)
        part = found.part(self._rank)
        if found.world_size != self._world_size or not part.exists():
            return state, None
        return state, torch.load(part, map_location="cpu", weights_only=True)

    def save(self, iteration: int, state: State, own: State | None = None) -> None:
        """Save the common state, which rank 0 writes, and each rank's own. Collective."""
        if self._directory is None:
            return
        files = {checkpoints.STATE: state} if self._rank == 0 else {}
        if own is not None:
            files[checkpoints.part_name(self._rank)] = own
        for name, content in files.items():
            _write(self._directory, iteration, name, content)
        self._barrier()
        if self._rank == 0:
            checkpoints.seal(self._directory, iteration, self._world_size, self._keep)


def _write(directory: Path, iteration: int, name: str, content: State) -> None:
    checkpoints.write_file(directory, iteration, name, lambda file: torch.save(content, file))
