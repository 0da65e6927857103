"""Isaac Lab's benchmarks under observation: the phases of the start, and stepping, on every rank.

By themselves they measure rank 0 alone, let no rank wait for another, tell nobody how far they are, and can only be
ended by force. What trains is observed with its library, as in any other run.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any

import torch.distributed as dist

from launcher.train.here import read_plan
from launcher.train.rank import Rank
from launcher.train.timings import Timings

_TELL_EVERY_S = 1.0


def run(workload: str, timings: Timings, work: Callable[[], int]) -> int:
    """Do Isaac Lab's benchmark of that name; returns its exit code."""
    _observe_start(timings)
    stepping = None if workload == "training" else _Stepping(timings)
    code = work()
    if stepping is not None and workload == "startup":
        stepping.started()
    if dist.is_initialized():
        dist.destroy_process_group()
    return code


def _observe_start(timings: Timings) -> None:
    """Isaac Lab's phases end where its own benchmarks see them end, on every rank, and leave no gap between them."""
    modules: Any = map(importlib.import_module, ("isaaclab.app", "isaaclab_tasks.utils", "gymnasium"))
    app, utils, gymnasium = modules
    resolve, launch, make = utils.resolve_task_config, app.launch_simulation, gymnasium.make

    @wraps(resolve)
    def resolve_task_config(*arguments: Any, **named: Any) -> Any:
        timings.mark("python_imports")
        resolved = resolve(*arguments, **named)
        timings.mark("task_config")
        return resolved

    @contextlib.contextmanager
    def launch_simulation(*arguments: Any, **named: Any) -> Generator[Any]:
        with launch(*arguments, **named) as launched:
            timings.mark("app_launch")
            yield launched

    @wraps(make)
    def made(*arguments: Any, **named: Any) -> Any:
        env = make(*arguments, **named)
        timings.mark("env_creation")
        timings.await_first_step(env.unwrapped)
        return env

    utils.resolve_task_config, app.launch_simulation, gymnasium.make = resolve_task_config, launch_simulation, made


class _Stepping:
    """Stands behind the random steps of a benchmark without a library: all that are taken, or just the first."""

    def __init__(self, timings: Timings) -> None:
        self._timings, self._done = timings, 0
        stepping: Any = importlib.import_module("isaaclab.benchmark.stepping")
        self._module = stepping
        self._loop, self._sample = stepping.run_runtime_loop, stepping.sample_random_actions
        stepping.run_runtime_warmup = self._warm_up
        stepping.run_runtime_loop = self._measure
        stepping.sample_random_actions = self._first_sample

    def started(self) -> None:
        """The first step is done: the start is over."""
        self._join()
        self._rank.progress(1)
        self._finish("max_iterations")

    def _join(self) -> None:
        plan = read_plan()["training"]
        self._rank = Rank(plan["device"], plan["seed"])
        self._rank.__enter__()  # left by this process, at its end
        self._rank.barrier()

    def _first_sample(self, env: Any) -> Any:
        """What comes before the first step: the environments are reset by now."""
        self._timings.mark("env_creation")
        self._module.sample_random_actions = self._sample
        return self._sample(env)

    def _warm_up(self, env: Any, num_steps: int) -> list[float]:
        """In place of Isaac Lab's: all ranks begin together."""
        self._join()
        self._timings.mark("process_group")
        self._done = num_steps
        return self._loop(env, num_steps)

    def _measure(self, env: Any, num_steps: int, *, reset: bool = True) -> list[float]:
        """Isaac Lab's loop bit by bit, to look up in between; ends early on a rank that is asked to stop."""
        seconds: list[float] = []
        while len(seconds) < num_steps and not (seconds and self._rank.asked_to_stop):
            began, left = time.monotonic(), num_steps - len(seconds)
            bit = max(1, int(_TELL_EVERY_S / max(seconds[-1], 1e-6))) if seconds else 1
            seconds += self._loop(env, min(bit, left), reset=reset and not seconds)
            self._tell(env.unwrapped.num_envs, min(bit, left), time.monotonic() - began)
        self._timings.steps(env.unwrapped.num_envs, seconds)
        self._finish("max_iterations" if len(seconds) == num_steps else "asked to stop")
        return seconds

    def _tell(self, frames: int, steps: int, seconds: float) -> None:
        """Of this rank alone, unlike in a training."""
        self._done += steps
        self._rank.progress(self._done, env_steps=self._done * frames, fps=round(steps * frames / seconds))

    def _finish(self, reason: str) -> None:
        self._timings.gather(self._rank)
        self._rank.report(reason)
