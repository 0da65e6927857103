"""RSL-RL's PPO as one rank: ``python -m launcher.train.rsl_rl``, started by torchrun.

What the library does by itself and what is added here: it hard-codes NCCL and the device (so the process group is
made before, for any device), counts iterations from the last start (so the total is kept), restarts at the saved
iteration (so the next one is saved), and saves in place (so checkpoints are atomic).
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from rsl_rl.utils.logger import Logger
from tensordict import TensorDict

from launcher.train.environments import Environments
from launcher.train.rank import Rank, settings

_NEVER = sys.maxsize


class StopTraining(Exception):
    """Leaves RSL-RL's loop after an iteration, on all ranks alike."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RslRlEnv(VecEnv):
    """Our environments in RSL-RL's interface."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments
        self.num_envs, self.num_actions = environments.num_envs, environments.num_actions
        self.max_episode_length = environments.max_episode_length or _NEVER
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=environments.device)
        self.device = environments.device
        self.cfg = {}

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": self._environments.observations}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        step = self._environments.step(actions)
        return self.get_observations(), step.rewards, step.dones, {"time_outs": step.time_outs}


class Runner(OnPolicyRunner):
    """RSL-RL's runner on any device, with our records in place of its console output and checkpoints."""

    def __init__(self, env: VecEnv, training: Mapping[str, Any], rank: Rank, log_dir: Path) -> None:
        self._rank, self._training = rank, training
        config = {**training["agent"], "save_interval": _NEVER}
        super().__init__(env, config, log_dir=str(log_dir), device=str(rank.device))
        self.logger = Telemetry(self, log_dir)

    def _configure_multi_gpu(self) -> None:
        """What RSL-RL does here, less the parts that only work with one CUDA device per rank."""
        rank = self._rank
        self.gpu_world_size, self.gpu_global_rank, self.gpu_local_rank = rank.world_size, rank.rank, rank.local_rank
        self.is_distributed = rank.world_size > 1
        places = {"global_rank": rank.rank, "local_rank": rank.local_rank, "world_size": rank.world_size}
        self.cfg["multi_gpu"] = places if self.is_distributed else None

    def save(self, path: str, infos: dict[str, Any] | None = None) -> None:
        """Nothing: RSL-RL's own final checkpoint would be written in place."""

    def run(self) -> str:
        """Train to the end; returns the reason of the end."""
        left = self._training["max_iterations"] - self.current_learning_iteration
        try:
            if left > 0:
                self.learn(left)
        except StopTraining as stop:
            return stop.reason
        return "max_iterations"

    def resume(self) -> None:
        """Go on after the newest checkpoint, if there is one."""
        state = self._rank.checkpoints.load(self._rank.device)
        if state is not None:
            self.alg.load(state["algorithm"], None, True)
            self.alg.learning_rate = state["learning_rate"]
            self.current_learning_iteration = self._rank.iteration = state["iteration"]

    def after_iteration(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Record, save when it is time, and end when the ranks agree to. `done` counts finished iterations."""
        rank, training = self._rank, self._training
        rank.progress(done, **metrics)
        solved = _solved(training["task"]["solved"], metrics)
        stop = rank.should_stop(wish=solved)
        if stop or done % training["checkpoint"]["every"] == 0 or done == training["max_iterations"]:
            self._checkpoint(done)
        if stop:
            raise StopTraining("solved" if rank.all_reduce_max(float(solved)) else "asked to stop")

    def _checkpoint(self, done: int) -> None:
        self._rank.check_sync([*self.alg.actor.parameters(), *self.alg.critic.parameters()])
        state = {"iteration": done, "algorithm": self.alg.save(), "learning_rate": self.alg.learning_rate}
        self._rank.checkpoints.save(done, state)


class Telemetry(Logger):
    """RSL-RL's logger: TensorBoard as ever, and the hook that it calls on every rank after every iteration."""

    def __init__(self, runner: Runner, log_dir: Path) -> None:
        self._runner = runner
        env, rank = runner.env, runner._rank
        super().__init__(
            str(log_dir), runner.cfg, env.cfg, env.num_envs, runner.is_distributed, rank.world_size, rank.rank,
            str(rank.device),
        )  # fmt: skip

    def _store_code_state(self) -> list[str]:
        """Nothing: the git state of the installed library says nothing about the user's code."""
        return []

    def log(self, it: int, *args: Any, collect_time: float, learn_time: float, **kwargs: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            super().log(it, *args, collect_time=collect_time, learn_time=learn_time, **kwargs)
        self._runner.after_iteration(it + 1, self._metrics(it + 1, collect_time, learn_time, kwargs))

    def _metrics(self, done: int, collect_time: float, learn_time: float, said: Mapping[str, Any]) -> dict[str, Any]:
        """Frames are those of all ranks; returns are unscaled, over the last 100 episodes of this rank."""
        frames = self.cfg["num_steps_per_env"] * self.num_envs * self.gpu_world_size
        scale = self._runner._training["task"]["reward_scale"]
        return {
            "env_steps": done * frames,
            "fps": round(frames / (collect_time + learn_time)),
            "return_mean": fmean(self.rewbuffer) / scale if self.rewbuffer else None,
            "length_mean": fmean(self.lenbuffer) if self.lenbuffer else None,
            "collect_time": round(collect_time, 4),
            "learn_time": round(learn_time, 4),
            "learning_rate": said["learning_rate"],
            **{f"loss_{name}": value for name, value in said["loss_dict"].items()},
        }


def _solved(goal: Mapping[str, Any] | None, metrics: Mapping[str, Any]) -> bool:
    """False on the ranks that measure nothing: the one that does decides for all."""
    value = metrics.get(goal["metric"]) if goal else None
    return goal is not None and value is not None and value >= goal["threshold"]


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def main() -> None:
    """Train as the plan in LAUNCHER_RUN_DIR says."""
    training = settings()
    task = training["task"]
    with Rank(training["device"], training["seed"], training["checkpoint"]["keep"]) as rank:
        _seed(rank.seed)
        environments = Environments(
            task["env"], training["num_envs"], rank.seed, rank.device, task["reward_scale"], task["env_args"]
        )
        print(f"first observation {environments.observations[0].tolist()}", flush=True)
        log_dir = Path(os.environ["LAUNCHER_RUN_DIR"]) / "tensorboard"
        runner = Runner(RslRlEnv(environments), training, rank, log_dir)
        runner.resume()
        rank.report(runner.run())


if __name__ == "__main__":
    main()
