"""Where a gymnasium environment stands, in plain values, so that a resumed training sees what it would have seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

State = dict[str, Any]

_MUJOCO = ("qpos", "qvel", "act", "qacc_warmstart", "ctrl")


def get_state(env: gymnasium.Env[Any, Any]) -> State | None:
    """The state of physics, random numbers and the episode's clock; None for a kind of environment not known here."""
    physics = _get_physics(env.unwrapped)
    if physics is None:
        return None
    generator = env.unwrapped.np_random.bit_generator
    return {"physics": physics, "random": generator.state, "elapsed": [limit._elapsed_steps for limit in _limits(env)]}


def set_state(env: gymnasium.Env[Any, Any], state: State) -> None:
    """Put an environment of the same kind, reset before, where :func:`get_state` found another one."""
    _set_physics(env.unwrapped, state["physics"])
    env.unwrapped.np_random.bit_generator.state = state["random"]
    for limit, elapsed in zip(_limits(env), state["elapsed"], strict=True):
        limit._elapsed_steps = elapsed


def _limits(env: gymnasium.Env[Any, Any]) -> Iterator[TimeLimit[Any, Any]]:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            yield env
        env = env.env


def _get_physics(env: Any) -> State | None:
    if hasattr(env, "data") and hasattr(env.data, "qpos"):  # MuJoCo
        return {"time": env.data.time, **{name: getattr(env.data, name).tolist() for name in _MUJOCO}}
    if getattr(env, "state", None) is not None:  # classic control
        return {"state": np.asarray(env.state, dtype=np.float64).tolist()}
    return None


def _set_physics(env: Any, physics: State) -> None:
    if "state" in physics:
        env.state = np.array(physics["state"])
        return
    env.data.time = physics["time"]
    for name in _MUJOCO:
        getattr(env.data, name)[:] = physics[name]
    # without a step: what the observation reads (positions of bodies, contact forces) follows from the state
    import mujoco

    mujoco.mj_forward(env.model, env.data)  # pyright: ignore[reportAttributeAccessIssue]
    env.data.qacc_warmstart[:] = physics["qacc_warmstart"]
