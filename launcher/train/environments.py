"""Gymnasium's vector environments as the RL libraries want them: torch tensors, episodes that restart by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from launcher.train import environment_state


@dataclass(frozen=True)
class Step:
    """What one step of all environments gave; every tensor's first dimension is the environment."""

    observations: torch.Tensor
    """Float32; after the end of an episode, the first one of the next."""
    rewards: torch.Tensor
    """Float32, scaled."""
    dones: torch.Tensor
    """Bool: the episode ended, for either reason."""
    time_outs: torch.Tensor
    """Bool: it ended because its time was up, not because of what happened in it."""


class Environments:
    """Environments of one kind on one rank; actions are continuous, whatever the task's are.

    A discrete action is the largest of n continuous ones, or the sign of one where there are two.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int, device: torch.device, reward_scale: float = 1.0,
                 env_args: Mapping[str, Any] | None = None) -> None:  # fmt: skip
        envs = gymnasium.make_vec(
            env_id,
            num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
            **(env_args or {}),
        )
        assert isinstance(envs, SyncVectorEnv)
        self._envs = envs
        self._space = self._envs.single_action_space
        self._scale = reward_scale
        self.num_envs, self.device = num_envs, device
        self.num_actions = _action_size(self._space)
        self.max_episode_length = self._envs.spec.max_episode_steps if self._envs.spec else None
        self.observations = self._tensor(self._envs.reset(seed=seed)[0])

    def step(self, actions: torch.Tensor) -> Step:
        """Act in all environments; `actions` has the shape (num_envs, num_actions)."""
        observations, rewards, ended, timed_out, _ = self._envs.step(self._translate(actions))
        self.observations = self._tensor(observations)
        return Step(
            self.observations,
            self._tensor(rewards) * self._scale,
            torch.as_tensor(ended | timed_out, device=self.device),
            torch.as_tensor(timed_out & ~ended, device=self.device),
        )

    def get_state(self) -> dict[str, Any] | None:
        """Where all environments stand, in plain values; None where they cannot tell."""
        states = [environment_state.get_state(env) for env in self._envs.envs]
        return None if None in states else {"envs": states, "observations": self.observations.cpu()}

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Go on from where :meth:`get_state` found them."""
        if state is None:
            print("resuming in new episodes: these environments cannot tell where they stood", flush=True)
            return
        for env, stood in zip(self._envs.envs, state["envs"], strict=True):
            environment_state.set_state(env, stood)
        self.observations = state["observations"].to(self.device)

    def _translate(self, actions: torch.Tensor) -> np.ndarray:
        raw = actions.detach().cpu().numpy()
        if isinstance(self._space, gymnasium.spaces.Box):
            middle, half = (self._space.high + self._space.low) / 2, (self._space.high - self._space.low) / 2
            return middle + half * np.clip(raw, -1.0, 1.0)
        return (raw[:, 0] > 0).astype(np.int64) if self.num_actions == 1 else raw.argmax(axis=1)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)


def _action_size(space: gymnasium.Space[Any]) -> int:
    if isinstance(space, gymnasium.spaces.Discrete):
        return 1 if space.n == 2 else int(space.n)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and np.isfinite(space.high - space.low).all():
        return space.shape[0]
    raise RuntimeError(f"actions of the kind {space} are not supported: discrete ones and bounded vectors are")
