"""skrl's agents on PyTorch under observation, where Isaac Lab builds them.

By itself skrl counts steps anew on resume, measures no throughput, and can only be ended by force.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skrl.trainers.torch import SequentialTrainer

from launcher.train.observed import Observer
from launcher.train.timings import Timings

LIBRARY = "skrl"


def observe(timings: Timings) -> None:
    """Have every trainer that is started from now on observed, on every rank."""
    kind: Any = SequentialTrainer
    original = kind.train

    def train(trainer: Any) -> None:
        rollouts = trainer.agents.cfg.rollouts
        observer = Observer(LIBRARY, str(trainer.agents.device), trainer.cfg.timesteps // rollouts, timings)
        _Hooks(trainer, observer)

        def loop(left: int) -> None:
            trainer.cfg.timesteps = left * rollouts
            original(trainer)

        observer.run(loop)

    kind.train = train


class _Hooks:
    """Stands between a trainer and its agent; an iteration is a rollout and an update."""

    def __init__(self, trainer: Any, observer: Observer) -> None:
        self._agent, self._observer = trainer.agents, observer
        self._rollouts: int = self._agent.cfg.rollouts
        self._before, self._timesteps = observer.rank.iteration * self._rollouts, trainer.cfg.timesteps
        self._frames = self._rollouts * trainer.env.num_envs * observer.rank.world_size
        self._original = self._agent.post_interaction
        self._agent.post_interaction = self._post_interaction
        self._began = time.perf_counter()
        self._episodes: tuple[float, float] | tuple[None, None] = (None, None)
        """Mean return and length of those that ended last."""

    def _post_interaction(self, *, timestep: int, timesteps: int) -> None:
        """The update is in the agent's own, after the last step of a rollout."""
        step, collected = self._before + timestep, time.perf_counter()
        if self._agent._track_rewards:  # which it forgets as soon as it has logged them
            self._episodes = (float(np.mean(self._agent._track_rewards)), float(np.mean(self._agent._track_timesteps)))
        self._original(timestep=step, timesteps=self._timesteps)
        if (step + 1) % self._rollouts == 0:
            done, learned = (step + 1) // self._rollouts, time.perf_counter()
            times = (collected - self._began, learned - collected)
            self._observer.took(self._frames // self._observer.rank.world_size, *times)
            self._observer.after_iteration(done, self._metrics(done, *times), self._tensors, self._save)
            self._began = time.perf_counter()

    def _metrics(self, done: int, collect_time: float, learn_time: float) -> dict[str, Any]:
        agent = self._agent
        optimizer = getattr(agent, "optimizer", None)  # one per agent, where there are several
        return {
            "env_steps": self._frames * done,
            "fps": round(self._frames / (collect_time + learn_time)),
            "return_mean": self._episodes[0],
            "length_mean": self._episodes[1],
            "collect_time": round(collect_time, 4),
            "learn_time": round(learn_time, 4),
            "learning_rate": optimizer.param_groups[0]["lr"] if isinstance(optimizer, torch.optim.Optimizer) else None,
        }

    def _save(self) -> Path:
        path = Path(self._agent.experiment_dir) / "checkpoints" / f"iteration_{self._observer.rank.iteration}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._agent.save(str(path))
        return path

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Parameters alone: skrl's normalisers see each rank's own samples, by design."""
        for module in self._agent.checkpoint_modules.values():
            if isinstance(module, torch.nn.Module):
                yield from module.parameters()
