"""Saving beside the training: the ranks write their files, and rank 0 seals them, in a thread each.

A save goes on in steps that all ranks take alike, because each follows from what they agree on: every rank tells its
`status`, of each number in it the largest of all ranks counts, and all take it to `go_on`. So a save that fails
anywhere is given up everywhere, and no rank waits for one that has.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.records import checkpoints
from launcher.records.checkpoints import Draft, Save
from launcher.train import fence

Files = Mapping[str, Save]
IDLE, WRITING, SEALING = "idle", "writing", "sealing"
_LOOK_EVERY_S = 1.0
"""How long a rank that waits for its disk leaves the others without a word."""


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay: the last ones, and the best by a metric."""

    last: int
    best: str | None

    def value(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What a seal tells of the metrics."""
        name = (self.best or "").removeprefix("-")
        return {name: metrics[name]} if name in metrics else {}


class Saver:
    """The saves of one rank; at most one is under way. Outside of the launcher nothing is saved."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        keep: Keep,
        threads: Executor,
        largest: Callable[[Sequence[float]], list[float]],
        before_seal: Callable[[], object],
    ) -> None:
        """Nothing is under way yet.

        Args:
            rank: this one's number; 0 seals.
            world_size: how many there are.
            keep: which checkpoints stay.
            threads: what does the writing.
            largest: of each number the largest of all ranks.
            before_seal: has what belongs to the saved iterations survive with them.
        """
        directory = os.environ.get("LAUNCHER_CHECKPOINT_DIR")
        self._directory = Path(directory) if directory else None
        self._rank, self._world_size, self._keep = rank, world_size, keep
        self._threads, self._largest, self._before_seal = threads, largest, before_seal
        self._phase = IDLE
        self._work: Future[None] | None = None
        self.saved = True
        """Whether the last save that ended was sealed; on all ranks alike."""

    @property
    def idle(self) -> bool:
        """True when the next save can begin; on all ranks alike."""
        return self._phase == IDLE

    def begin(self, iteration: int, files: Callable[[], Files], metrics: Mapping[str, Any]) -> None:
        """Begin a save, on all ranks. An OSError of `files` counts as one of the disk.

        Args:
            iteration: how many are done.
            files: what this rank writes, by name; what it was when this returns.
            metrics: of rank 0, those of the iteration.
        """
        if self._directory is None:
            return
        self._draft, self._metrics = Draft(self._directory, iteration, fence.attempt()), self._keep.value(metrics)
        self._phase, self._names = WRITING, ()
        try:
            given = files()
        except OSError as error:
            self._work = Future()
            self._work.set_exception(error)
        else:
            self._names = tuple(self._all_names(given))
            self._work = self._threads.submit(self._write, given)

    def status(self) -> list[float]:
        """Whether this rank is still at work, the number of the error that it met, whether it was superseded.

        Raises:
            Exception: what went wrong has nothing to do with disks.
        """
        if self._work is None:
            return [0.0, 0.0, 0.0]
        if not self._work.done():
            return [1.0, 0.0, 0.0]
        error = self._work.exception()
        if error is None or isinstance(error, (OSError, fence.Superseded)):
            number = (error.errno or errno.EIO) if isinstance(error, OSError) else 0
            return [0.0, float(number), float(isinstance(error, fence.Superseded))]
        raise error

    def go_on(self, busy: float, failed: float, superseded: float) -> None:
        """Take the next step, when all ranks have done theirs.

        Raises:
            Superseded: another attempt has begun, and nothing was saved; on all ranks alike.
        """
        if superseded:
            self._give_up()
            raise fence.Superseded("another attempt of this run has taken over: this one writes nothing more")
        if busy or self._phase == IDLE:
            return
        if failed:
            self._give_up()
            self._warn(os.strerror(int(failed)))
        elif self._phase == WRITING:
            self._phase = SEALING
            self._work = self._threads.submit(self._seal) if self._rank == 0 else None
        else:
            self._phase, self._work, self.saved = IDLE, None, True

    def finish(self) -> None:
        """Wait until nothing is under way. Collective."""
        while not self.idle:
            if self._work is not None:
                wait([self._work], _LOOK_EVERY_S)
            self.go_on(*self._largest(self.status()))

    def _all_names(self, own: Iterable[str]) -> Iterable[str]:
        """Of the files of all ranks: as rank 0 has a part of its own, so have the others."""
        yield from own
        if checkpoints.part_name(0) in own:
            yield from map(checkpoints.part_name, range(1, self._world_size))

    def _write(self, files: Files) -> None:
        fence.check()
        for name, save in files.items():
            self._draft.write(name, save)

    def _seal(self) -> None:
        self._before_seal()
        self._draft.seal(self._world_size, self._names, self._metrics)
        fence.check()
        directory = self._draft.publish().parent
        with contextlib.suppress(OSError):  # the checkpoint is there; the next save prunes again
            checkpoints.prune(directory, self._keep.last, self._keep.best)

    def _give_up(self) -> None:
        self._phase, self._work, self.saved = IDLE, None, False
        if self._rank == 0:
            self._draft.discard()

    def _warn(self, why: str) -> None:
        if self._rank == 0:
            number = f"{self._draft.iteration:09}"
            print(f"warning: checkpoint {number} was not saved: {why}; the one before it stays", flush=True)
