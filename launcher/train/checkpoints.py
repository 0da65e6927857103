"""Checkpoints as a rank sees them: the newest one to go on from, and a place to save the next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from launcher.records import checkpoints


class Checkpoints:
    """Atomic, sealed checkpoints of the run; written by rank 0, read by all."""

    def __init__(self, directory: Path | None, writer: bool, keep: int) -> None:
        """Without a directory (outside of the launcher) nothing is saved."""
        self._directory, self._writer, self._keep = directory, writer, keep

    def latest(self) -> Path | None:
        """The checkpoint to go on from, the same for all ranks: the agents chose it before the start."""
        chosen = os.environ.get("LAUNCHER_RESUME")
        return Path(chosen) if chosen else None

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The state in the newest checkpoint, or None at a fresh start.

        Tensors and plain values only: a pickle could run any code.
        """
        path = self.latest()
        return None if path is None else torch.load(path, map_location=device, weights_only=True)

    def save(self, iteration: int, state: dict[str, Any]) -> None:
        """Save the state after `iteration` iterations. Only rank 0 writes."""
        if self._writer and self._directory is not None:
            checkpoints.write(self._directory, iteration, lambda file: torch.save(state, file), self._keep)
