"""rl_games' PPO under observation, where Isaac Lab builds it.

By itself it forgets the last learning rate on resume, and can only be ended by force.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rl_games.common.a2c_common import ContinuousA2CBase, DiscreteA2CBase

from launcher.train.observed import Observer
from launcher.train.timings import Timings

LIBRARY = "rl_games"


def observe(timings: Timings) -> None:
    """Have every agent that trains from now on observed, on every rank."""
    for kind in (ContinuousA2CBase, DiscreteA2CBase):
        _observe(kind, timings)


def _observe(kind: Any, timings: Timings) -> None:
    original = kind.train

    def train(agent: Any) -> tuple[float, int]:
        observer = Observer(LIBRARY, str(agent.device), agent.max_epochs, timings)
        _Hooks(agent, observer)
        observer.run(lambda _: original(agent))
        return agent.last_mean_rewards, agent.epoch_num

    kind.train = train


class _Hooks:
    """Stands behind every epoch of an agent, which all ranks go through alike."""

    def __init__(self, agent: Any, observer: Observer) -> None:
        self._agent, self._observer = agent, observer
        self._original = agent.train_epoch
        agent.train_epoch = self._train_epoch
        if observer.rank.iteration:
            agent.last_lr = agent.optimizer.param_groups[0]["lr"]

    def _train_epoch(self) -> Any:
        said = self._original()
        self._observer.took(self._agent.curr_frames, said[1], said[2])
        self._observer.after_iteration(self._agent.epoch_num, self._metrics(*said[1:4]), self._tensors, self._save)
        return said

    def _metrics(self, play_time: float, update_time: float, total_time: float) -> dict[str, Any]:
        agent = self._agent
        frames = agent.curr_frames * agent.world_size
        known = agent.game_rewards.current_size > 0
        return {
            "env_steps": frames * agent.epoch_num,
            "fps": round(frames / total_time),
            "return_mean": float(agent.game_rewards.get_mean()[0]) if known else None,
            "length_mean": float(agent.game_lengths.get_mean()) if known else None,
            "collect_time": round(play_time, 4),
            "learn_time": round(update_time, 4),
            "learning_rate": float(agent.last_lr),
        }

    def _save(self) -> Path:
        path = f"{self._agent.nn_dir}/{self._agent.config['name']}_iteration_{self._agent.epoch_num}"
        self._agent.save(path)
        return Path(f"{path}.pth")

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Parameters alone: rl_games' normalisers see each rank's own samples, by design."""
        yield from self._agent.model.parameters()
