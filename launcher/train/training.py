"""What is the same for the training of every library: seeds, environments, records, saving, resuming, stopping."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from launcher.records.files import read_json
from launcher.train import randomness
from launcher.train.environments import Environments
from launcher.train.rank import Rank

State = dict[str, Any]


class StopTraining(Exception):
    """Leaves a library's loop after an iteration, on all ranks alike."""


class Training:
    """A training as the plan wants it, on this rank."""

    def __init__(self, plan: Mapping[str, Any], rank: Rank) -> None:
        """`plan` is the part of the plan that is for the ranks."""
        self.plan, self.rank = plan, rank
        self.agent: dict[str, Any] = plan["agent"]
        self.max_iterations: int = plan["max_iterations"]
        self.log_dir = Path(os.environ["LAUNCHER_RUN_DIR"]) / "tensorboard"
        self.task = plan["task"]
        randomness.seed_all(rank.seed)
        self.environments = Environments(
            self.task["env"], plan["num_envs"], rank.seed, rank.device, self.task["reward_scale"], self.task["env_args"]
        )
        print(f"first observation {self.environments.observations[0].tolist()}", flush=True)
        self._own: State | None = None

    def resume(self) -> State | None:
        """The state to go on from, or None at a fresh start. `begin` then restores what is this rank's own."""
        loaded = self.rank.checkpoints.load(self.rank.device)
        if loaded is None:
            return None
        state, self._own = loaded
        self.rank.iteration = state["iteration"]
        if self._own is None:
            print("resuming with another number of ranks: random numbers and environments start anew", flush=True)
        return state

    def begin(self) -> None:
        """To be called right before the library's loop: from here on random numbers are those of the plan."""
        if self._own is not None:
            randomness.set_state(self._own["random"])
            self.environments.set_state(self._own["environments"])

    def after_iteration(
        self,
        done: int,
        metrics: Mapping[str, Any],
        tensors: Callable[[], Iterable[torch.Tensor]],
        state: Callable[[], State],
    ) -> None:
        """To be called by every rank after every iteration: records, saves when it is time, stops when all agree.

        Args:
            done: iterations that are done.
            metrics: what rank 0 records of the last one.
            tensors: all that must be equal on all ranks: parameters and normalisers.
            state: what a resumed training needs besides `iteration`; the same on all ranks.

        Raises:
            StopTraining: the training is to end here, on all ranks.
        """
        self.rank.progress(done, **metrics)
        solved = self._solved(metrics)
        stop = self.rank.should_stop(wish=solved)
        if stop or done % self.plan["checkpoint"]["every"] == 0 or done == self.max_iterations:
            self.rank.check_sync(tensors())
            self.rank.checkpoints.save(done, {"iteration": done, **state()}, self._own_state())
        if stop:
            raise StopTraining("solved" if self.rank.all_reduce_max(float(solved)) else "asked to stop")

    def run(self, loop: Callable[[int], object]) -> None:
        """Run a library's loop over the iterations that are left, and record why it ended."""
        left = self.max_iterations - self.rank.iteration
        reason = "max_iterations"
        try:
            if left > 0:
                self.begin()
                loop(left)
        except StopTraining as stop:
            reason = str(stop)
        self.rank.report(reason)

    def _own_state(self) -> State:
        return {"random": randomness.get_state(), "environments": self.environments.get_state()}

    def _solved(self, metrics: Mapping[str, Any]) -> bool:
        """False on the ranks that measure nothing: the one that does decides for all."""
        goal = self.task["solved"]
        value = metrics.get(goal["metric"]) if goal else None
        return goal is not None and value is not None and value >= goal["threshold"]


@contextlib.contextmanager
def training() -> Generator[Training]:
    """Join the run that LAUNCHER_RUN_DIR names, as one of its ranks."""
    plan = read_json(Path(os.environ["LAUNCHER_RUN_DIR"]) / "plan.json")
    if plan is None:
        raise RuntimeError("no plan.json in LAUNCHER_RUN_DIR")
    wanted = plan["training"]
    with Rank(wanted["device"], wanted["seed"], wanted["checkpoint"]["keep"]) as rank:
        yield Training(wanted, rank)
