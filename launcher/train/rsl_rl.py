"""RSL-RL's PPO as one rank: ``python -m launcher.train.rsl_rl``, started by torchrun.

What the library does by itself and what is added here: it hard-codes NCCL and the device (so the process group is
made before, for any device), counts iterations from the last start (so the total is kept), restarts at the saved
iteration (so the next one is saved), and saves in place (so checkpoints are atomic).
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from rsl_rl.utils.logger import Logger
from tensordict import TensorDict

from launcher.train.environments import Environments
from launcher.train.training import State, Training, training

_NEVER = sys.maxsize


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

    def __init__(self, training: Training) -> None:
        self.training = training
        config = {**training.agent, "save_interval": _NEVER}
        env = RslRlEnv(training.environments)
        super().__init__(env, config, log_dir=str(training.log_dir), device=str(training.rank.device))
        self.logger = Telemetry(self)

    def _configure_multi_gpu(self) -> None:
        """What RSL-RL does here, less the parts that only work with one CUDA device per rank."""
        rank = self.training.rank
        self.gpu_world_size, self.gpu_global_rank, self.gpu_local_rank = rank.world_size, rank.rank, rank.local_rank
        self.is_distributed = rank.world_size > 1
        places = {"global_rank": rank.rank, "local_rank": rank.local_rank, "world_size": rank.world_size}
        self.cfg["multi_gpu"] = places if self.is_distributed else None

    def save(self, path: str, infos: dict[str, Any] | None = None) -> None:
        """Nothing: RSL-RL's own final checkpoint would be written in place."""

    def resume(self) -> None:
        """Go on after the checkpoint, if there is one."""
        state = self.training.resume()
        if state is not None:
            self.alg.load(state["algorithm"], None, True)
            self.current_learning_iteration = state["iteration"]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Parameters and normalisers."""
        yield from self.alg.actor.state_dict().values()
        yield from self.alg.critic.state_dict().values()

    def policy(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without exploration."""
        return self.alg.get_policy()(TensorDict({"policy": observations}, batch_size=[len(observations)]))

    def state(self) -> State:
        return {"algorithm": self.alg.save()}


class Telemetry(Logger):
    """RSL-RL's logger: TensorBoard as ever, and the hook that it calls on every rank after every iteration."""

    def __init__(self, runner: Runner) -> None:
        self._runner, rank = runner, runner.training.rank
        super().__init__(
            str(runner.training.log_dir), runner.cfg, runner.env.cfg, runner.env.num_envs, runner.is_distributed,
            rank.world_size, rank.rank, str(rank.device),
        )  # fmt: skip

    def _store_code_state(self) -> list[str]:
        """Nothing: the git state of the installed library says nothing about the user's code."""
        return []

    def log(self, it: int, *args: Any, collect_time: float, learn_time: float, **kwargs: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            super().log(it, *args, collect_time=collect_time, learn_time=learn_time, **kwargs)
        metrics = self._metrics(collect_time, learn_time, kwargs)
        self._runner.training.after_iteration(it + 1, metrics, self._runner.tensors, self._runner.state)

    def _metrics(self, collect_time: float, learn_time: float, said: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self._runner.training.measure(self.cfg["num_steps_per_env"], collect_time, learn_time),
            "learning_rate": said["learning_rate"],
            **{f"loss_{name}": value for name, value in said["loss_dict"].items()},
        }


def main() -> None:
    """Train as the plan in LAUNCHER_RUN_DIR says."""
    with training() as here:
        runner = Runner(here)
        runner.resume()
        here.run(runner.learn, runner.policy)


if __name__ == "__main__":
    main()
