"""Many environments at once, in one of several ways, all alike to those who use them.

Whatever the way: `step` takes and gives numpy arrays, an episode that ends is followed by the next one within the same
step (``AutoresetMode.SAME_STEP``), and its own last observation is in the infos, as gymnasium does it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from launcher.train import environment_state

Infos = dict[str, Any]
Stepped = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Infos]


class Environment(Protocol):
    """What `make` returns: a gymnasium vector environment, or what can stand in for one."""

    @property
    def single_action_space(self) -> gymnasium.Space[Any]: ...

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, Infos]: ...

    def step(self, actions: np.ndarray, /) -> Stepped: ...


def make(task: Mapping[str, Any], num_envs: int, seed: int, device: str) -> Environment:
    """The environments of a task.

    Args:
        task: `env` is the id of a gymnasium environment, or ``package.module:function`` of the user's;
            `vectorization` chooses the way, `env_args` goes to the environment.
        num_envs: how many.
        seed: for functions of the user's; all others are seeded by their first reset.
        device: for functions of the user's, which may simulate there.

    Raises:
        RuntimeError: the environment or the way does not exist here, or does not restart episodes in the same step.
    """
    if ":" in task["env"]:
        return _of_the_user(task["env"], dict(task["env_args"]), num_envs, seed, device)
    way = {"auto": _auto, "sync": _sync, "async": _async, "envpool": _envpool}[task["vectorization"]]
    return way(task["env"], num_envs, dict(task["env_args"]))


def state_of(envs: Environment) -> Any:
    """Where the environments stand, in plain values; None where they cannot tell."""
    if hasattr(envs, "get_state"):
        return envs.get_state()  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(envs, SyncVectorEnv):
        return None
    states = [environment_state.get_state(env) for env in envs.envs]
    return None if None in states else states


def restore(envs: Environment, state: Any) -> None:
    """Go on from where :func:`state_of` found them."""
    if hasattr(envs, "set_state"):
        envs.set_state(state)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(envs, SyncVectorEnv):
        for env, stood in zip(envs.envs, state, strict=True):
            environment_state.set_state(env, stood)


def _auto(env_id: str, num_envs: int, arguments: dict[str, Any]) -> Environment:
    """The native one where there is one, else one after the other: for light environments faster than processes."""
    if env_id == "CartPole-v1":
        return CartPoles(num_envs, **arguments)
    return _sync(env_id, num_envs, arguments)


def _sync(env_id: str, num_envs: int, arguments: dict[str, Any]) -> Environment:
    return _gymnasium(env_id, num_envs, "sync", arguments)


def _async(env_id: str, num_envs: int, arguments: dict[str, Any]) -> Environment:
    """A process for each environment: worth it where a step takes a millisecond, and where there are the CPUs."""
    return _gymnasium(env_id, num_envs, "async", arguments)


def _gymnasium(env_id: str, num_envs: int, mode: str, arguments: dict[str, Any]) -> Environment:
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return gymnasium.make_vec(env_id, num_envs, vectorization_mode=mode, vector_kwargs=same_step, **arguments)


def _envpool(env_id: str, num_envs: int, arguments: dict[str, Any]) -> Environment:
    try:
        import envpool  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RuntimeError("task.vectorization=envpool, but envpool is not installed: pip install envpool") from error
    return EnvPool(lambda seed: envpool.make_gymnasium(env_id, num_envs=num_envs, seed=seed, **arguments), num_envs)


def _of_the_user(name: str, arguments: dict[str, Any], num_envs: int, seed: int, device: str) -> Environment:
    module, _, function = name.partition(":")
    envs = getattr(importlib.import_module(module), function)(num_envs=num_envs, seed=seed, device=device, **arguments)
    mode = getattr(envs, "metadata", {}).get("autoreset_mode")
    if mode is not None and AutoresetMode(mode) is not AutoresetMode.SAME_STEP:
        raise RuntimeError(f"{name} gives environments that restart with the next step: make them with SAME_STEP")
    return envs


class CartPoles(CartPoleVectorEnv):
    """Gymnasium's native vector CartPole, which restarts an episode only with the next step: here in the same one."""

    def step(self, action: np.ndarray) -> Stepped:  # pyright: ignore[reportIncompatibleMethodOverride]
        observations, rewards, terminated, truncated, infos = super().step(action)
        done = terminated | truncated
        if done.any():
            infos = {"final_obs": _rows(observations), "_final_obs": done}
            assert self.state is not None
            self.state[:, done] = self.np_random.uniform(self.low, self.high, (4, int(done.sum())))
            self.steps[done], self.prev_done[:] = 0, False
            observations = self.state.T.astype(np.float32)
        return observations, rewards, terminated, truncated, infos

    def get_state(self) -> dict[str, Any]:
        """Where the environments stand, in plain values."""
        assert self.state is not None
        return {
            "state": self.state.tolist(),
            "steps": self.steps.tolist(),
            "random": self.np_random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from where :meth:`get_state` found them."""
        self.state, self.steps = np.array(state["state"]), np.array(state["steps"], dtype=np.int32)
        self.np_random.bit_generator.state = state["random"]


class EnvPool:
    """envpool's environments, which restart with the next step and are seeded when they are made, as the others."""

    def __init__(self, make_pool: Any, num_envs: int) -> None:
        """`make_pool` makes the pool from its seed."""
        self._make_pool, self.num_envs = make_pool, num_envs
        self._pool = make_pool(0)
        self.single_action_space = self._pool.single_action_space
        self.spec = self._pool.spec

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, Infos]:
        if seed is not None:
            self._pool = self._make_pool(seed)
        return self._pool.reset()

    def step(self, actions: np.ndarray, /) -> Stepped:
        observations, rewards, terminated, truncated, _ = self._pool.step(actions)
        done = terminated | truncated
        infos: Infos = {}
        if done.any():
            infos = {"final_obs": _rows(observations), "_final_obs": done}
            observations = observations.copy()
            observations[done] = self._pool.reset(np.flatnonzero(done))[0]
        return observations, rewards, terminated, truncated, infos


def _rows(observations: np.ndarray) -> np.ndarray:
    """An array of arrays, one for each environment: gymnasium's form of final observations."""
    rows = np.empty(len(observations), dtype=object)
    rows[:] = list(observations.copy())
    return rows
