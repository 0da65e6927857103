"""RSL-RL's runner under observation, whoever builds it: mjlab, Isaac Lab.

By itself the runner repeats the saved iteration on resume, takes the number of iterations for those to come, and can
only be ended by force.
"""

from __future__ import annotations

import importlib.metadata
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.runners import OnPolicyRunner

from launcher.train.normalisers import pool
from launcher.train.observed import Observer
from launcher.train.timings import Timings

LIBRARY = "rsl_rl"


def observe(timings: Timings) -> None:
    """Have every runner that is started from now on observed, on every rank."""
    kind: Any = OnPolicyRunner
    original = kind.learn

    def learn(runner: Any, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        observer = Observer(LIBRARY, runner.device, num_learning_iterations, timings)
        _Hooks(runner, observer)
        observer.run(lambda left: original(runner, left, init_at_random_ep_len))

    kind.learn = learn
    if not _synchronises_normalisers(importlib.metadata.version("rsl-rl-lib")):
        normaliser: Any = EmpiricalNormalization
        normaliser.update = _update


def _synchronises_normalisers(version: str) -> bool:
    """RSL-RL does so since 5.5; before, the ranks drift apart."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= (5, 5)


def _update(normaliser: Any, samples: torch.Tensor) -> None:
    """RSL-RL's update of a normaliser, over the samples of all ranks."""
    if not normaliser.training or (normaliser.until is not None and normaliser.count >= normaliser.until):
        return
    own_variance = samples.var(0, unbiased=False, keepdim=True)
    mean, variance, count = pool(samples.mean(0, keepdim=True), own_variance, samples.shape[0])
    normaliser.count += count
    rate = count / normaliser.count
    shift = mean - normaliser._mean
    normaliser._mean += (rate * shift).to(samples.dtype)
    normaliser._var += (rate * (variance - normaliser._var + shift * (mean - normaliser._mean))).to(samples.dtype)
    normaliser._std = normaliser._var.sqrt()


class _Hooks:
    """Stands between a runner and its logger, which it calls on every rank after every iteration."""

    def __init__(self, runner: Any, observer: Observer) -> None:
        self._runner, self._observer = runner, observer
        self._original: Callable[..., None] = runner.logger.log
        runner.logger.log = self._log
        runner.current_learning_iteration = observer.rank.iteration

    def _log(self, **said: Any) -> None:
        self._original(**said)
        logger = self._runner.logger
        self._observer.took(logger.cfg["num_steps_per_env"] * logger.num_envs, said["collect_time"], said["learn_time"])
        self._observer.after_iteration(said["it"] + 1, self._metrics(said), self._tensors, self._save)

    def _metrics(self, said: dict[str, Any]) -> dict[str, Any]:
        logger = self._runner.logger
        seconds = said["collect_time"] + said["learn_time"]
        frames = logger.cfg["num_steps_per_env"] * logger.num_envs * logger.gpu_world_size
        return {
            "env_steps": frames * (said["it"] + 1),
            "fps": round(frames / seconds),
            "return_mean": statistics.mean(logger.rewbuffer) if logger.rewbuffer else None,
            "length_mean": statistics.mean(logger.lenbuffer) if logger.lenbuffer else None,
            "collect_time": round(said["collect_time"], 4),
            "learn_time": round(said["learn_time"], 4),
            "learning_rate": said["learning_rate"],
            **{f"loss_{name}": value for name, value in said["loss_dict"].items()},
        }

    def _save(self) -> Path:
        path = Path(self._runner.logger.log_dir) / f"model_{self._runner.current_learning_iteration}.pt"
        self._runner.save(str(path))
        return path

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Parameters and normalisers."""
        for module in vars(self._runner.alg).values():
            if isinstance(module, torch.nn.Module):
                yield from module.state_dict().values()
