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
from types import SimpleNamespace
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
    """skrl's SequentialTrainer on PyTorch."""
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.trainers.torch import SequentialTrainer

    from launcher.train.skrl import TorchLearner

    learner = TorchLearner(_lone(environments, agent, iterations, directory))
    return _trainer(environments, learner, Wrapper, SequentialTrainer, iterations)


def skrl_jax(environments: Environments, agent: dict[str, Any], iterations: int, directory: str) -> float:
    """skrl's SequentialTrainer on JAX."""
    from skrl.envs.wrappers.jax import Wrapper
    from skrl.trainers.jax import SequentialTrainer

    from launcher.train.skrl_jax import JaxLearner

    learner = JaxLearner(_lone(environments, agent, iterations, directory))
    return _trainer(environments, learner, Wrapper, SequentialTrainer, iterations)


def _lone(environments: Environments, agent: dict[str, Any], iterations: int, directory: str) -> Any:
    """What our learners, which build skrl's agent, need of a training of one rank."""
    from launcher.train.rank import Rank

    log_dir = Path(directory) / "plain"
    return SimpleNamespace(
        rank=Rank("cpu"), environments=environments, agent=agent, log_dir=log_dir, max_iterations=iterations, task={}
    )


def _trainer(environments: Environments, learner: Any, wrapper: Any, trainer: Any, iterations: int) -> float:
    """skrl's own loop over an agent that is built as ours is."""
    marks: list[float] = []

    class Env(wrapper):
        def reset(self) -> Any:
            return learner.to_skrl(environments.observations), {}

        def step(self, actions: Any) -> Any:
            marks.append(time.perf_counter())
            step = environments.step(learner.to_torch(actions))
            ended = step.dones & ~step.time_outs
            given = (one.unsqueeze(1) for one in (step.rewards, ended, step.time_outs))
            return *map(learner.to_skrl, (step.observations, *given)), {}

        def state(self) -> None:
            return None

        def render(self, *args: Any, **kwargs: Any) -> None: ...

        def close(self) -> None: ...

    rollouts = learner.agent.cfg.rollouts
    settings = {"timesteps": iterations * rollouts, "disable_progressbar": True, "close_environment_at_exit": False}
    trainer(env=Env(environments), agents=learner.agent, cfg=settings).train()
    return marks[(iterations - 1) * rollouts] - marks[(WARM - 1) * rollouts]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


LOOPS = {"rsl_rl": rsl_rl, "rl_games": rl_games, "skrl": skrl, "skrl_jax": skrl_jax}

if __name__ == "__main__":
    main(sys.argv[1:])
