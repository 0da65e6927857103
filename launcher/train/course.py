"""The course of a training, the same under every library: record, agree, save when it is time, stop when asked to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from launcher.train.rank import Rank


class StopTraining(Exception):
    """Leaves a library's loop after an iteration, on all ranks alike."""


class Schedule:
    """When a save is due: at multiples of so many iterations or after so many minutes, whichever comes first."""

    def __init__(self, every: int | None, minutes: float | None, done: int) -> None:
        """`done` iterations are done; a limit that is None is none."""
        self._every, self._minutes = every, minutes
        self.begun(done)

    def begun(self, done: int) -> None:
        """A save after so many iterations has begun."""
        self._done, self._began = done, time.monotonic()

    def due(self, done: int) -> bool:
        """Whether one is due. A multiple that was missed, because another save was under way, still counts."""
        passed = self._every is not None and done // self._every > self._done // self._every
        return passed or (self._minutes is not None and time.monotonic() - self._began >= 60 * self._minutes)


class Course:
    """What every rank does after every iteration."""

    def __init__(self, rank: Rank, checkpoint: Mapping[str, Any], goal: Mapping[str, Any] | None, total: int) -> None:
        """To be made when the loop is about to begin.

        Args:
            rank: this one, whose iteration says where the loop begins.
            checkpoint: ``every`` and ``minutes`` of the plan.
            goal: the metric and the threshold at which the task is solved, if it can be.
            total: iterations in all, those before a resume included.
        """
        self._rank, self._goal, self._total = rank, goal, total
        self._schedule = Schedule(checkpoint["every"], checkpoint["minutes"], rank.iteration)

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
            save: begins a save with the rank's saver.

        Raises:
            StopTraining: the training is to end here, on all ranks.
            RanksOutOfSync, Superseded: it must; on all ranks alike.
        """
        rank = self._rank
        rank.progress(done, **metrics)
        wishes = (rank.asked_to_stop, self._solved(metrics), rank.rank == 0 and self._schedule.due(done))
        stop, solved, due, *steps = rank.largest([*map(float, wishes), *rank.saver.status()])
        rank.saver.go_on(*steps)
        last = bool(stop or solved or done == self._total)
        if last:
            rank.saver.finish()
        if last or (due and rank.saver.idle):
            self._schedule.begun(done)
            rank.check_sync(tensors())
            save()
        if last:
            self._end()
        if stop or solved:
            raise StopTraining("solved" if solved else "asked to stop")

    def _end(self) -> None:
        self._rank.saver.finish()
        if not self._rank.saver.saved and self._rank.rank == 0:
            print("warning: the training ends without its last checkpoint", flush=True)

    def _solved(self, metrics: Mapping[str, Any]) -> bool:
        """By rank 0's metrics, which are those on record; what it finds holds for all."""
        goal = self._goal
        value = metrics.get(goal["metric"]) if goal else None
        return self._rank.rank == 0 and goal is not None and value is not None and value >= goal["threshold"]
