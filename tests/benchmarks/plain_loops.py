"""Each RL library's own plain loop on our environments: the baseline of ``adapters.py``.

``python -m tests.benchmarks.plain_loops LIBRARY PLAN ITERATIONS DIRECTORY`` prints the seconds of an iteration, with
what the library does by default: its own logging to TensorBoard, no checkpoints.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from launcher.train.environments import Environments
from launcher.train.randomness import seed_all

WARM = 5
"""Iterations before the clock starts."""


def main(arguments: list[str]) -> None:
    """Run one plain loop, and print its seconds per iteration."""
    library, plan, iterations, directory = arguments
    training = json.loads(Path(plan).read_text())["training"]
    seed_all(training["seed"])
    environments = Environments(training["task"], training["num_envs"], training["seed"], torch.device("cpu"))
    with contextlib.redirect_stdout(io.StringIO()):
        seconds = LOOPS[library](environments, training["agent"], int(iterations), directory)
    print(seconds / (int(iterations) - WARM))


def rsl_rl(environments: Environments, agent: dict[str, Any], iterations: int, directory: str) -> float:
    """RSL-RL's OnPolicyRunner."""
    from rsl_rl.runners import OnPolicyRunner

    from launcher.train.rsl_rl import RslRlEnv

    runner = OnPolicyRunner(RslRlEnv(environments), {**agent, "save_interval": sys.maxsize}, directory, "cpu")
    runner.learn(WARM)
    return _seconds(lambda: runner.learn(iterations - WARM))


def rl_games(environments: Environments, agent: dict[str, Any], iterations: int, directory: str) -> float:
    """rl_games' agent, built and run as its Runner does."""
    from rl_games.algos_torch.a2c_continuous import A2CAgent
    from rl_games.common.algo_observer import DefaultAlgoObserver
    from rl_games.common.tr_helpers import DefaultRewardsShaper

    from launcher.train.rl_games import RlGamesEnv

    marks: list[float] = []

    class Timed(A2CAgent):
        def train_epoch(self) -> Any:
            marks.append(time.perf_counter())
            return super().train_epoch()

    params, env = copy.deepcopy(agent), RlGamesEnv(environments, discrete=False)
    params["config"] |= {
        "name": "plain", "env_name": "plain", "env_info": env.info, "vec_env": env, "device": "cpu",
        "num_actors": environments.num_envs, "max_epochs": iterations, "torch_compile": False, "save_frequency": 0,
        "reward_shaper": DefaultRewardsShaper(), "features": {"observer": DefaultAlgoObserver()},
        "train_dir": directory, "save_best_after": sys.maxsize,
    }  # fmt: skip
    Timed("run", params).train()
    return marks[-1] - marks[WARM - 1]


def skrl(environments: Environments, agent: dict[str, Any], iterations: int, directory: str) -> float:
    """skrl's SequentialTrainer."""
    from types import SimpleNamespace

    from skrl.envs.wrappers.torch import Wrapper
    from skrl.trainers.torch import SequentialTrainer

    from launcher.train.rank import Rank
    from launcher.train.skrl import TorchLearner  # the agent is built as ours is; the loop is skrl's

    marks: list[float] = []

    class Env(Wrapper):
        def reset(self) -> Any:
            return environments.observations, {}

        def step(self, actions: torch.Tensor) -> Any:
            marks.append(time.perf_counter())
            step = environments.step(actions)
            ended = step.dones & ~step.time_outs
            return step.observations, *(one.unsqueeze(1) for one in (step.rewards, ended, step.time_outs)), {}

        def state(self) -> None:
            return None

        def render(self, *args: Any, **kwargs: Any) -> None: ...

        def close(self) -> None: ...

    here = SimpleNamespace(
        rank=Rank("cpu"), environments=environments, agent=agent, log_dir=Path(directory) / "plain",
        max_iterations=iterations, task={},
    )  # fmt: skip
    learner = TorchLearner(here)  # pyright: ignore[reportArgumentType]
    rollouts = learner.agent.cfg.rollouts
    trainer = {"timesteps": iterations * rollouts, "disable_progressbar": True, "close_environment_at_exit": False}
    SequentialTrainer(env=Env(environments), agents=learner.agent, cfg=trainer).train()
    return marks[(iterations - 1) * rollouts] - marks[(WARM - 1) * rollouts]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


LOOPS = {"rsl_rl": rsl_rl, "rl_games": rl_games, "skrl": skrl}

if __name__ == "__main__":
    main(sys.argv[1:])
