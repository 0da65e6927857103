"""What the launcher adds to a training whose loop, log and checkpoints stay the library's own.

For libraries whose ranks run in an environment of their own: only torch is needed here besides the launcher's records.
The checkpoints that the library writes are copied into the run's, sealed, so that agents can choose the one to go on
from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from launcher.records import checkpoints
from launcher.train.here import read_plan
from launcher.train.rank import Rank


class StopTraining(Exception):
    """Leaves a library's loop after an iteration, on all ranks alike."""


def checkpoint_file(library: str) -> tuple[int, Path] | None:
    """The iterations that are done and the library's own file with their outcome, or None at a fresh start.

    Raises:
        RuntimeError: the checkpoint was written by another library.
    """
    chosen = os.environ.get("LAUNCHER_RESUME")
    found = checkpoints.read(Path(chosen)) if chosen else None
    if found is None:
        return None
    path = found.path / f"{library}.pt"
    if not path.exists():
        raise RuntimeError(f"{found.path} is not a checkpoint of {library}: give resume= a run that used {library}")
    return found.iteration, path


class Observer:
    """This rank of a training, told by hooks in the library's loop how far it is."""

    def __init__(self, library: str, device: str, total: int) -> None:
        """To be made when the library has joined the ranks and is about to train.

        Args:
            library: whose format the checkpoints have.
            device: what the library computes on.
            total: iterations in all, those before a resume included.
        """
        plan = read_plan()["training"]
        self._library, self._total, self._checkpoint = library, total, plan["checkpoint"]
        self._goal = plan["task"]["solved"]
        self.rank = Rank(torch.device(device).type, plan["seed"], self._checkpoint["keep"])
        self.rank.__enter__()  # left by the library, which ends the process group
        found = checkpoint_file(library)
        self.rank.iteration = found[0] if found else 0

    def run(self, loop: Callable[[int], object]) -> None:
        """Run the library's loop over the iterations that are left, and record why it ended."""
        left, reason = self._total - self.rank.iteration, "max_iterations"
        print(f"{self.rank.iteration} iterations are done, {max(0, left)} are left", flush=True)
        try:
            if left > 0:
                loop(left)
        except StopTraining as stop:
            reason = str(stop)
        self.rank.report(reason)

    def after_iteration(
        self,
        done: int,
        metrics: Mapping[str, Any],
        tensors: Callable[[], Iterable[torch.Tensor]],
        save: Callable[[], object],
    ) -> None:
        """To be called by every rank after every iteration.

        Args:
            done: iterations that are done.
            metrics: what rank 0 records of the last one.
            tensors: all that must be equal on all ranks.
            save: has the library write a checkpoint now, and hands it to `keep`; called on rank 0.

        Raises:
            StopTraining: the training is to end here, on all ranks.
        """
        self.rank.progress(done, **metrics)
        solved = self._solved(metrics)
        stop = self.rank.should_stop(wish=solved)
        if stop or done % self._checkpoint["every"] == 0 or done == self._total:
            self.rank.check_sync(tensors())
            if self.rank.rank == 0:
                save()
        if stop:
            raise StopTraining("solved" if self.rank.all_reduce_max(float(solved)) else "asked to stop")

    def keep(self, file: Path) -> None:
        """Seal a copy of a file that the library has just written. On rank 0."""
        directory, done = os.environ.get("LAUNCHER_CHECKPOINT_DIR"), self.rank.iteration
        if directory is None:
            return
        with open(file, "rb") as source:
            name = f"{self._library}.pt"
            checkpoints.write_file(Path(directory), done, name, lambda target: shutil.copyfileobj(source, target))
        checkpoints.seal(Path(directory), done, self.rank.world_size, self._checkpoint["keep"])

    def _solved(self, metrics: Mapping[str, Any]) -> bool:
        """By rank 0's metrics; what it finds holds for all."""
        value = metrics.get(self._goal["metric"]) if self._goal else None
        return self.rank.rank == 0 and value is not None and value >= self._goal["threshold"]
