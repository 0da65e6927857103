"""Environments alone as one rank: ``python -m launcher.train.stepping``, started by torchrun.

Random actions, no library: how fast this rank steps while the others do the same, each for itself. The ranks begin
together, and meet again when all have done.
"""

from __future__ import annotations

import time

import torch

from launcher.train.training import Training, training

_TELL_EVERY_S = 1.0


def main() -> None:
    """Step as the plan in LAUNCHER_RUN_DIR says."""
    with training() as here:
        here.rank.barrier()
        here.timings.begin()
        here.timings.await_first_step(here.environments)
        done = _step(here)
        here.timings.gather(here.rank)
        here.rank.report("max_iterations" if done == here.max_iterations else "asked to stop")


def _step(here: Training) -> int:
    """Step until all is done, or this rank is asked to stop; returns how many steps were done."""
    environments, told, at = here.environments, time.monotonic(), 0
    shape = (environments.num_envs, environments.num_actions)
    for step in range(1, here.max_iterations + 1):
        actions = 2 * torch.rand(shape, device=environments.device) - 1
        began = time.perf_counter()
        environments.step(actions)
        here.timings.iteration(environments.num_envs, time.perf_counter() - began, 0.0)
        if (passed := time.monotonic() - told) > _TELL_EVERY_S or step == here.max_iterations:
            _tell(here, step, (step - at) * environments.num_envs / passed)
            told, at = time.monotonic(), step
            if here.rank.asked_to_stop:
                return step
    return here.max_iterations


def _tell(here: Training, step: int, fps: float) -> None:
    """Of this rank alone, unlike in a training."""
    here.rank.progress(step, env_steps=step * here.environments.num_envs, fps=round(fps))


if __name__ == "__main__":
    main()
