"""Gymnasium's vector environments as the RL libraries want them: torch tensors, episodes that restart by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

from launcher.train import vectorization
from launcher.train.episodes import Episodes
from launcher.train.peers import EarlyData


@dataclass(frozen=True)
class Step:
    """What one step of all environments gave; every tensor's first dimension is the environment."""

    observations: torch.Tensor
    """Float32; after the end of an episode, the first one of the next."""
    reached: torch.Tensor
    """Float32; after the end of an episode, its own last one: what a value beyond the time limit is estimated from.

    The very object that `observations` is, where no episode ended.
    """
    rewards: torch.Tensor
    """Float32, scaled."""
    dones: torch.Tensor
    """Bool: the episode ended, for either reason."""
    time_outs: torch.Tensor
    """Bool: it ended because its time was up, not because of what happened in it."""


class Environments:
    """Environments of one kind on one rank; actions are continuous, whatever the task's are.

    A discrete action is the largest of n continuous ones, or the sign of one where there are two. A library that
    chooses among discrete ones by itself gives their numbers, as integers.
    """

    def __init__(self, task: Mapping[str, Any], num_envs: int, seed: int, device: torch.device) -> None:
        """`task` is the task of the plan."""
        self._envs = vectorization.make(task, num_envs, seed, str(device))
        self._space = self._envs.single_action_space
        self._scale = task["reward_scale"]
        self.num_envs, self.device = num_envs, device
        self.num_actions = _action_size(self._space)
        self.num_choices = int(self._space.n) if isinstance(self._space, gymnasium.spaces.Discrete) else None
        self.episodes = Episodes(num_envs)
        self.early = EarlyData()
        """By which ranks with the same data are found."""
        spec = getattr(self._envs, "spec", None)
        self.max_episode_length: int | None = getattr(spec, "max_episode_steps", None)
        self.observations = self._tensor(self._envs.reset(seed=seed)[0])

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """What the libraries see: float32, whatever the task's is."""
        return gymnasium.spaces.Box(-np.inf, np.inf, self.observations.shape[1:], np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """Continuous actions between -1 and 1, which :meth:`step` translates."""
        return gymnasium.spaces.Box(-1.0, 1.0, (self.num_actions,), np.float32)

    def step(self, actions: torch.Tensor) -> Step:
        """Act in all environments; `actions` has the shape (num_envs, num_actions)."""
        observations, rewards, ended, timed_out, infos = self._envs.step(self._translate(actions))
        self.observations = self._tensor(observations)
        self.episodes.add(rewards, ended | timed_out)
        reached, scaled = _reached(observations, infos), self._tensor(rewards) * self._scale
        self.early.add(self.observations, scaled)
        return Step(
            self.observations,
            self.observations if reached is observations else self._tensor(reached),
            scaled,
            torch.as_tensor(ended | timed_out, device=self.device),
            torch.as_tensor(timed_out & ~ended, device=self.device),
        )

    def get_state(self) -> dict[str, Any] | None:
        """Where all environments stand, in plain values; None where they cannot tell."""
        state = vectorization.state_of(self._envs)
        if state is None:
            return None
        own = {"observations": self.observations.cpu(), "episodes": self.episodes.get_state()}
        return {"kind": self._kind, "envs": state, **own}

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Go on from where :meth:`get_state` found as many of the same kind; others begin new episodes."""
        if problem := self._misfit(state):
            print(f"resuming in new episodes: {problem}", flush=True)
        elif state is not None:
            self._restore(state)

    def _misfit(self, state: dict[str, Any] | None) -> str:
        """Why these cannot stand where others stood; empty where they can."""
        if state is None:
            return "these environments cannot tell where they stood"
        if (stood := len(state["observations"])) != self.num_envs:
            return f"the checkpoint is of {stood} environments a rank, and here are {self.num_envs}"
        if (kind := state.get("kind")) != self._kind:
            return f"the checkpoint is of environments that step in another way ({kind}, not {self._kind})"
        return ""

    @property
    def _kind(self) -> str:
        return type(self._envs).__name__

    def _restore(self, state: dict[str, Any]) -> None:
        vectorization.restore(self._envs, state["envs"])
        self.observations = state["observations"].to(self.device)
        self.episodes.set_state(state["episodes"])

    @property
    def frame_rate(self) -> int:
        """Pictures per second at which the environments look as they should."""
        return int(getattr(self._envs, "metadata", {}).get("render_fps", 30))

    def render(self) -> np.ndarray:
        """A picture of the first environment, of height × width × 3; it has to be made with a render mode."""
        return getattr(self._envs, "render")()[0]  # noqa: B009 - not all kinds have it

    def _translate(self, actions: torch.Tensor) -> np.ndarray:
        raw = actions.detach().cpu().numpy()
        if not actions.is_floating_point():
            return raw
        if isinstance(self._space, gymnasium.spaces.Box):
            middle, half = (self._space.high + self._space.low) / 2, (self._space.high - self._space.low) / 2
            return middle + half * np.clip(raw, -1.0, 1.0)
        return (raw[:, 0] > 0).astype(np.int64) if self.num_actions == 1 else raw.argmax(axis=1)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)


def _reached(observations: np.ndarray, infos: Mapping[str, Any]) -> np.ndarray:
    """The observations with those of the episodes that ended put back: gymnasium has reset them within the step."""
    if "final_obs" not in infos:
        return observations
    ended = infos["_final_obs"]
    reached = observations.copy()
    reached[ended] = np.stack(infos["final_obs"][ended])
    return reached


def _action_size(space: gymnasium.Space[Any]) -> int:
    if isinstance(space, gymnasium.spaces.Discrete):
        return 1 if space.n == 2 else int(space.n)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and np.isfinite(space.high - space.low).all():
        return space.shape[0]
    raise RuntimeError(f"actions of the kind {space} are not supported: discrete ones and bounded vectors are")
