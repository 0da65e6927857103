"""Checkpoints as a rank sees them: the one to go on from, and a place to save the next."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from launcher.records import checkpoints
from launcher.records.checkpoints import Checkpoint, Save
from launcher.train.saving import Saver

State = dict[str, Any]


class Checkpoints:
    """Atomic, sealed checkpoints of the run."""

    def __init__(self, rank: int, world_size: int, saver: Saver, metrics: Callable[[], Mapping[str, Any]]) -> None:
        """Outside of the launcher nothing is saved and nothing is found. `metrics` are the newest ones of rank 0."""
        self._rank, self._world_size, self._saver, self._metrics = rank, world_size, saver, metrics

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
        if self._rank == 0:
            print(f"goes on from checkpoint {found.path}", flush=True)
        state = torch.load(found.state, map_location=device, weights_only=True)
        part = found.part(self._rank)
        if found.world_size != self._world_size or not part.exists():
            return state, None
        return state, torch.load(part, map_location="cpu", weights_only=True)

    def begin(self, iteration: int, state: State, own: State | None = None) -> None:
        """Begin to save the common state, which rank 0 writes, and each rank's own, as they are now.

        The caller goes on with the saver, which does the rest beside the training.
        """
        contents = {checkpoints.STATE: state} if self._rank == 0 else {}
        if own is not None:
            contents[checkpoints.part_name(self._rank)] = own
        files = {name: _serialised(content) for name, content in contents.items()}
        self._saver.begin(iteration, lambda: files, self._metrics())

    def save(self, iteration: int, state: State, own: State | None = None) -> bool:
        """Save, and wait until all is on disk. Collective.

        False, on all ranks alike, when a disk failed: then the checkpoint before is still there, and a line in rank
        0's log says why.

        Raises:
            Superseded: another attempt of the run has begun, and nothing was saved.
        """
        self._saver.finish()
        self.begin(iteration, state, own)
        self._saver.finish()
        return self._saver.saved


def _serialised(content: State) -> Save:
    """In this process's memory, so that the training can change the tensors while they are being written."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return lambda file: file.write(buffer.getbuffer())
