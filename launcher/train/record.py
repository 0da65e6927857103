"""A short video of a trained policy, without a screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from launcher.train.environments import Environments

Policy = Callable[[torch.Tensor], torch.Tensor]
"""Observations of some environments to their actions, without exploration."""

_SECONDS = 20
_WITHOUT_A_SCREEN = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}
"""For pygame, which draws the classic tasks, and for MuJoCo. Where the user has set them they stay."""


def record(task: Mapping[str, Any], policy: Policy, path: Path, device: torch.device) -> None:
    """Write an MP4 of one episode, of 20 s at most. A failure is told and harms nothing: the training is done."""
    try:
        frames, rate = _play(task, policy, device)
        _write(path, frames, rate)
        print(f"recorded {path}", flush=True)
    except Exception as error:
        print(f"no video: {type(error).__name__}: {error}", flush=True)


def _play(task: Mapping[str, Any], policy: Policy, device: torch.device) -> tuple[list[np.ndarray], int]:
    for name, value in _WITHOUT_A_SCREEN.items():
        os.environ.setdefault(name, value)
    shown = {**task, "vectorization": "sync", "env_args": {**task["env_args"], "render_mode": "rgb_array"}}
    environments = Environments(shown, 1, 0, device)
    frames, rate = [environments.render()], environments.frame_rate
    for _ in range(_SECONDS * rate):
        with torch.no_grad():
            step = environments.step(policy(environments.observations))
        if step.dones.any():
            break
        frames.append(environments.render())
    return frames, rate


def _write(path: Path, frames: list[np.ndarray], rate: int) -> None:
    import imageio.v3 as imageio

    imageio.imwrite(path, np.stack(frames), fps=rate, macro_block_size=2)  # players want even widths and heights
