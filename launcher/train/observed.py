"""What the launcher adds to a training whose loop, log and checkpoints stay the library's own.

For libraries whose ranks run in an environment of their own: only torch is needed here besides the launcher's records.
The checkpoints that the library writes are copied into the run's, sealed, so that agents can choose the one to go on
from.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from launcher.records import checkpoints
from launcher.train.course import Course, StopTraining
from launcher.train.here import read_plan
from launcher.train.rank import Rank
from launcher.train.saving import Files
from launcher.train.timings import Timings


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

    def __init__(self, library: str, device: str, total: int, timings: Timings) -> None:
        """To be made when the library has joined the ranks and is about to train.

        Args:
            library: whose format the checkpoints have.
            device: what the library computes on.
            total: iterations in all, those before a resume included.
            timings: the clock of this rank.
        """
        plan = read_plan()["training"]
        checkpoint = plan["checkpoint"]
        self._library, self._total, self._timings = library, total, timings
        self.rank = Rank(torch.device(device).type, plan["seed"], checkpoint["keep"], checkpoint["best"])
        self.rank.__enter__()  # left by the library, which ends the process group
        found = checkpoint_file(library)
        self.rank.iteration = found[0] if found else 0
        self._course = Course(self.rank, checkpoint, plan["task"]["solved"], total)

    def run(self, loop: Callable[[int], object]) -> None:
        """Run the library's loop over the iterations that are left, and record why it ended."""
        left, reason = self._total - self.rank.iteration, "max_iterations"
        print(f"{self.rank.iteration} iterations are done, {max(0, left)} are left", flush=True)
        self._timings.begin()
        try:
            if left > 0:
                loop(left)
        except StopTraining as stop:
            reason = str(stop)
        self._timings.gather(self.rank)
        self.rank.report(reason)

    def took(self, frames: int, collect_s: float, learn_s: float) -> None:
        """To be called by every rank at the end of every iteration, before `after_iteration`.

        Args:
            frames: steps of all environments of this rank.
            collect_s: seconds that this rank spent on them.
            learn_s: seconds that this rank spent on the update.
        """
        self._timings.iteration(frames, collect_s, learn_s)
        self.rank.worked(collect_s)

    def after_iteration(
        self,
        done: int,
        metrics: Mapping[str, Any],
        tensors: Callable[[], Iterable[torch.Tensor]],
        save: Callable[[], Path],
    ) -> None:
        """To be called by every rank after every iteration.

        Args:
            done: iterations that are done.
            metrics: what rank 0 records of the last one.
            tensors: all that must be equal on all ranks.
            save: has the library write a checkpoint now, and tells in which file; called on rank 0.

        Raises:
            StopTraining: the training is to end here, on all ranks.
        """

        def begin() -> None:
            self.rank.saver.begin(done, lambda: self._files(save), metrics)

        self._course.after_iteration(done, metrics, tensors, begin)
        self._timings.between()

    def _files(self, save: Callable[[], Path]) -> Files:
        """What the library wrote, read now: it may write the same file again. torch raises no OSError for a disk."""
        if self.rank.rank != 0:
            return {}
        try:
            data = save().read_bytes()
        except RuntimeError as error:
            if "inline_container" not in str(error):  # torch's writer of files
                raise
            raise OSError(errno.EIO, str(error)) from error
        return {f"{self._library}.pt": lambda target: target.write(data)}
