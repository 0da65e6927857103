"""What skrl's PPO needs under either of its backends, PyTorch and JAX: the loop, the records, the configuration.

To be imported before anything else of skrl: while skrl is imported it makes a process group of its own, with NCCL,
wherever it sees a WORLD_SIZE above one. Here it is imported as if it were alone, and :func:`place` tells it its rank.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from launcher.train.rank import Rank
from launcher.train.training import State, Training

_world_size = os.environ.pop("WORLD_SIZE", None)
import skrl  # noqa: E402, F401  # pyright: ignore[reportUnusedImport]

if _world_size is not None:
    os.environ["WORLD_SIZE"] = _world_size

_LOSSES = {"Policy": "surrogate", "Value": "value", "Entropy": "entropy"}
"""skrl's names of the losses, and those that all libraries are recorded under."""
_CLASSES = ("learning_rate_scheduler", "observation_preprocessor", "value_preprocessor")


def place(backend: Any, rank: Rank) -> None:
    """Tell one of skrl's backends (``config.torch``, ``config.jax``) which rank it is."""
    backend._rank, backend._local_rank, backend._world_size = rank.rank, rank.local_rank, rank.world_size
    backend._is_distributed = rank.world_size > 1


def ppo_config(training: Training, device: Any, classes: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's configuration with what the plan decides, and with classes in place of their names.

    Raises:
        RuntimeError: a class that is not among `classes`: its state would not be in the checkpoint.
    """
    config = copy.deepcopy(training.agent["agent"])
    for key in _CLASSES:
        if (name := config.get(key)) is not None:
            if name not in classes:
                raise RuntimeError(f"agent.agent.{key}={name} is not supported: {', '.join(classes)} are")
            config[key] = classes[name]
    config["observation_preprocessor_kwargs"] = {"size": training.environments.observation_space, "device": device}
    config["value_preprocessor_kwargs"] = {"size": 1, "device": device}
    config["experiment"] = {
        "directory": str(training.log_dir.parent),
        "experiment_name": training.log_dir.name,
        "write_interval": sys.maxsize if training.rank.rank == 0 else 0,  # when it is time is decided here
        "checkpoint_interval": 0,
    }
    return config


def model_arguments(training: Training, role: str, device: Any) -> dict[str, Any]:
    """What skrl's model instantiators want."""
    envs = training.environments
    spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space}
    return {**spaces, "device": device, **training.agent["models"][role]}


class Learner(ABC):
    """skrl's trainer, less its own count of steps: an iteration is a rollout and an update."""

    def __init__(self, training: Training, agent: Any) -> None:
        """`agent` is skrl's PPO of either backend."""
        self.training, self.agent = training, agent
        self._rollouts: int = agent.cfg.rollouts
        self._timesteps = training.max_iterations * self._rollouts
        agent.init()
        agent.enable_training_mode(True)

    @abstractmethod
    def to_skrl(self, tensor: torch.Tensor) -> Any:
        """A tensor of the environments as the backend's array."""

    @abstractmethod
    def to_torch(self, array: Any) -> torch.Tensor:
        """Its inverse."""

    @abstractmethod
    def learning_rate(self) -> float: ...

    @abstractmethod
    def tensors(self) -> Iterator[torch.Tensor]:
        """Parameters and normalisers."""

    @abstractmethod
    def state(self) -> State: ...

    @abstractmethod
    def load(self, state: State) -> None: ...

    def resume(self) -> None:
        """Go on after the checkpoint, if there is one."""
        state = self.training.resume()
        if state is not None:
            self.load(state)

    def policy(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without exploration."""
        self.agent.enable_training_mode(False)
        clock = {"timestep": self._timesteps, "timesteps": self._timesteps}
        actions, said = self.agent.act(self.to_skrl(observations), None, **clock)
        return self.to_torch(said.get("mean_actions", actions))

    def learn(self, iterations: int) -> None:
        """The loop over iterations."""
        self._observations = self.to_skrl(self.training.environments.observations)
        before = self.training.rank.iteration
        try:
            for iteration in range(before, before + iterations):
                self._iterate(iteration)
        finally:
            if self.training.rank.rank == 0:
                self.agent.writer.close()

    def _iterate(self, iteration: int) -> None:
        began = collected = time.perf_counter()
        for timestep in range(iteration * self._rollouts, (iteration + 1) * self._rollouts):
            with torch.no_grad():
                self.step(timestep)
            collected = time.perf_counter()
            self.agent.post_interaction(timestep=timestep, timesteps=self._timesteps)  # after the last: the update
        metrics = self.training.measure(self._rollouts, collected - began, time.perf_counter() - collected)
        metrics["learning_rate"] = self.learning_rate()
        metrics |= self._losses()
        self._write(metrics)
        self.training.after_iteration(iteration + 1, metrics, self.tensors, self.state)

    def step(self, timestep: int) -> None:
        """One step of all environments."""
        clock = {"timestep": timestep, "timesteps": self._timesteps}
        actions, _ = self.agent.act(self._observations, None, **clock)
        step = self.training.environments.step(self.to_torch(actions))
        observations = self.to_skrl(step.observations)
        reached = observations if step.reached is step.observations else self.to_skrl(step.reached)
        self.agent.record_transition(
            observations=self._observations, states=None, actions=actions,
            rewards=self.to_skrl(step.rewards.unsqueeze(1)),
            next_observations=reached, next_states=None,
            terminated=self.to_skrl((step.dones & ~step.time_outs).unsqueeze(1)),
            truncated=self.to_skrl(step.time_outs.unsqueeze(1)), infos={}, **clock,
        )  # fmt: skip
        self._observations = observations

    def _losses(self) -> dict[str, float]:
        found = {name: self.agent.tracking_data.get(f"Loss / {theirs} loss") for theirs, name in _LOSSES.items()}
        return {f"loss_{name}": values[-1] for name, values in found.items() if values}

    def _write(self, metrics: Mapping[str, Any]) -> None:
        """To TensorBoard, from rank 0; skrl collects what it tracks on the others too, and never clears it."""
        if self.training.rank.rank == 0:
            self.agent.track_data("Stats / Frames per second", metrics["fps"])
            self.agent.write_tracking_data(timestep=metrics["env_steps"], timesteps=self._timesteps)
        self.agent.tracking_data.clear()
