"""What is the same for the training of every library: seeds, environments, records, saving, resuming, stopping."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from launcher.train import randomness
from launcher.train.course import Course, StopTraining
from launcher.train.environments import Environments
from launcher.train.here import read_plan
from launcher.train.rank import Rank
from launcher.train.record import Policy, record
from launcher.train.timings import Timings

State = dict[str, Any]


class Training:
    """A training as the plan wants it, on this rank."""

    def __init__(self, plan: Mapping[str, Any], rank: Rank, timings: Timings) -> None:
        """`plan` is the part of the plan that is for the ranks."""
        self.plan, self.rank, self.timings = plan, rank, timings
        self.agent: dict[str, Any] = plan["agent"]
        self.max_iterations: int = plan["max_iterations"]
        self.log_dir = Path(os.environ["LAUNCHER_RUN_DIR"]) / "tensorboard"
        self.task = plan["task"]
        randomness.seed_all(rank.seed)
        self.environments = Environments(self.task, plan["num_envs"], rank.seed, rank.device)
        rank.peers.data = self.environments.early
        timings.mark("env_creation")
        print(f"first observation {self.environments.observations[0].tolist()}", flush=True)
        self.env_steps = 0
        """Steps of all environments of all ranks, over all attempts."""
        self._own: State | None = None

    def resume(self) -> State | None:
        """The state to go on from, or None at a fresh start. `begin` then restores what is this rank's own."""
        loaded = self.rank.checkpoints.load(self.rank.device)
        if loaded is None:
            return None
        state, self._own = loaded
        self.rank.iteration, self.env_steps = state["iteration"], state["env_steps"]
        if self._own is None:
            print("resuming with another number of ranks: random numbers and environments start anew", flush=True)
        return state

    def begin(self) -> None:
        """To be called right before the library's loop: from here on random numbers are those of the plan."""
        if self._own is not None:
            randomness.set_state(self._own["random"])
            self.environments.set_state(self._own["environments"])
        self._course = Course(self.rank, self.plan["checkpoint"], self.task["solved"], self.max_iterations)
        self.timings.begin()
        self.timings.await_first_step(self.environments)

    def measure(self, steps: int, collect_time: float, learn_time: float) -> dict[str, Any]:
        """What is recorded of an iteration under every library. To be called once per iteration, on every rank.

        Frames are those of all ranks; returns are unscaled, over the last episodes of this rank.

        Args:
            steps: steps of each environment in this iteration.
            collect_time: seconds that this rank spent on them.
            learn_time: seconds that this rank spent on the update.
        """
        self.rank.worked(collect_time)  # normalisers, which are pooled, are updated while the ranks learn
        own_frames = steps * self.environments.num_envs
        self.timings.iteration(own_frames, collect_time, learn_time)
        frames = own_frames * self.rank.world_size
        self.env_steps += frames
        return {
            "env_steps": self.env_steps,
            "fps": round(frames / (collect_time + learn_time)),
            "return_mean": self.environments.episodes.return_mean,
            "length_mean": self.environments.episodes.length_mean,
            "collect_time": round(collect_time, 4),
            "learn_time": round(learn_time, 4),
        }

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
            state: what a resumed training needs besides the counters; the same on all ranks.

        Raises:
            StopTraining: the training is to end here, on all ranks.
        """

        def save() -> None:
            common = {"iteration": done, "env_steps": self.env_steps, **state()}
            self.rank.checkpoints.begin(done, common, self._own_state())

        self._course.after_iteration(done, metrics, tensors, save)
        self.timings.between()

    def run(self, loop: Callable[[int], object], policy: Policy) -> None:
        """Run a library's loop over the iterations that are left, and record why it ended.

        `policy` is what the loop trains, for the video that ``task.record`` asks for.
        """
        left = self.max_iterations - self.rank.iteration
        reason = "max_iterations"
        try:
            if left > 0:
                self.begin()
                loop(left)
        except StopTraining as stop:
            reason = str(stop)
        self.timings.gather(self.rank)
        self.rank.report(reason)
        if self.task["record"] and self.rank.rank == 0:
            record(self.task, policy, self.log_dir.parent / "policy.mp4", self.rank.device)

    def _own_state(self) -> State:
        return {"random": randomness.get_state(), "environments": self.environments.get_state()}


@contextlib.contextmanager
def training(device: str | None = None) -> Generator[Training]:
    """Join the run that LAUNCHER_RUN_DIR names, as one of its ranks.

    Args:
        device: what torch computes on, where that is not the plan's to say because something else does the gradients.
    """
    wanted = read_plan()["training"]
    checkpoint = wanted["checkpoint"]
    timings = Timings(wanted.get("bench"), gradients_here=device is None)
    with Rank(device or wanted["device"], wanted["seed"], checkpoint["keep"], checkpoint["best"]) as rank:
        timings.mark("process_group")
        yield Training(wanted, rank, timings)
