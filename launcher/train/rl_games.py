"""rl_games' PPO as one rank: ``python -m launcher.train.rl_games``, started by torchrun.

What the library does by itself and what is added here: it hard-codes NCCL and the device (so the agent is built as a
lone one and joins the ranks afterwards), lets the normalisers of the ranks drift apart (so they are pooled), counts
frames on rank 0 only and forgets the last learning rate on resume (so both are kept), and ends, saves and names its
directory by its own rules (so its outer loop is replaced).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium
import torch
import torch.distributed as dist
from rl_games.algos_torch import torch_ext
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.algos_torch.a2c_discrete import DiscreteA2CAgent
from rl_games.algos_torch.running_mean_std import RunningMeanStd
from rl_games.common.a2c_common import A2CBase
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.ivecenv import IVecEnv
from rl_games.common.tr_helpers import DefaultRewardsShaper

from launcher.train.environments import Environments
from launcher.train.normalisers import pool
from launcher.train.training import State, Training, training


class RlGamesEnv(IVecEnv):
    """Our environments in rl_games' interface."""

    def __init__(self, environments: Environments, discrete: bool) -> None:
        self._environments = environments
        actions = environments.action_space
        if discrete:
            if environments.num_choices is None:
                raise RuntimeError("a2c_discrete needs a task with discrete actions: use a2c_continuous")
            actions = gymnasium.spaces.Discrete(environments.num_choices)
        self.info = {"observation_space": environments.observation_space, "action_space": actions}

    def reset(self) -> torch.Tensor:
        return self._environments.observations

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        step = self._environments.step(actions)
        return step.observations, step.rewards, step.dones, {"time_outs": step.time_outs}


class PooledMeanStd(RunningMeanStd):
    """rl_games' normaliser over the samples of all ranks."""

    def _update_mean_var_count_from_moments(
        self, mean: Any, var: Any, count: Any, batch_mean: Any, batch_var: Any, batch_count: int
    ) -> Any:
        moments = pool(batch_mean, batch_var, batch_count)
        return super()._update_mean_var_count_from_moments(mean, var, count, *moments)


class Ranked(A2CBase):
    """What makes an agent of rl_games, of either kind, one rank of a run."""

    model: Any
    dataset: Any

    def __init__(self, training: Training) -> None:
        self.training = training
        super().__init__("run", _parameters(training))
        rank = training.rank
        self.multi_gpu, self.local_rank, self.world_size = rank.world_size > 1, rank.local_rank, rank.world_size
        self._pool_normalisers()
        if self.multi_gpu:
            for tensor in self.tensors():
                dist.broadcast(tensor, 0)

    @property
    def global_rank(self) -> int:
        """Decides who writes to TensorBoard."""
        return self.training.rank.rank

    @global_rank.setter
    def global_rank(self, _: int) -> None:
        """rl_games sets 0 for an agent that is built as a lone one."""

    def _pool_normalisers(self) -> None:
        """Replace the scripted normalisers, which cannot call a collective, before they have seen anything."""
        if self.normalize_rms_advantage:
            raise RuntimeError("normalize_rms_advantage lets the ranks drift apart and cannot be resumed: turn it off")
        if self.normalize_input:
            self.model.running_mean_std = PooledMeanStd(self.obs_shape).to(self.device)
        if self.normalize_value:
            self.model.value_mean_std = PooledMeanStd((self.value_size,)).to(self.device)
            self.value_mean_std = self.model.value_mean_std

    def resume(self) -> None:
        """Go on after the checkpoint, if there is one."""
        state = self.training.resume()
        if state is not None:
            self.set_full_state_weights(state["agent"])
            self.last_lr, self.entropy_coef = state["learning_rate"], state["entropy_coef"]

    def state(self) -> State:
        agent = self.get_full_state_weights()
        return {"agent": agent, "learning_rate": self.last_lr, "entropy_coef": self.entropy_coef}

    def tensors(self) -> Iterator[torch.Tensor]:
        """Parameters and normalisers."""
        yield from self.model.state_dict().values()

    def policy(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without exploration, where they are continuous."""
        self.set_eval()
        said = self.get_action_values({"obs": observations})
        return said.get("mus", said["actions"])

    def learn(self, epochs: int) -> None:
        """rl_games' outer loop, less its own end, checkpoints and broadcast."""
        if self.config.get("torch_compile", True) and self.training.rank.device.type == "cuda":
            self.model.compile()
        self.init_tensors()
        self.obs = self.env_reset()
        try:
            for _ in range(epochs):
                self.update_epoch()
                self._record(*self.train_epoch())  # pyright: ignore[reportGeneralTypeIssues]
        finally:
            if self.writer is not None:
                self.writer.close()

    def _record(self, step_time: float, play_time: float, update_time: float, total_time: float, *said: Any) -> None:
        """`said`: losses of actor, critic and, with continuous actions, bounds; entropies, KLs and learning rate."""
        actor_losses, critic_losses, *_, entropies, kls, last_lr, lr_mul = said
        self.dataset.update_values_dict(None)
        metrics = self.training.measure(self.horizon_length, play_time, update_time)
        self.frame = metrics["env_steps"]
        metrics["learning_rate"] = self.last_lr
        metrics["loss_surrogate"] = torch_ext.mean_list(actor_losses).item()
        metrics["loss_value"] = torch_ext.mean_list(critic_losses).item()
        metrics["loss_entropy"] = torch_ext.mean_list(entropies).item()
        if self.writer is not None:
            frames = self.curr_frames * self.world_size
            self.write_stats(total_time, self.epoch_num, step_time, play_time, update_time, actor_losses, critic_losses,
                             entropies, kls, last_lr, lr_mul, self.frame, total_time, play_time, frames)  # fmt: skip
            for name in ("return_mean", "length_mean"):
                if metrics[name] is not None:
                    self.writer.add_scalar(f"episodes/{name}", metrics[name], self.frame)
        self.training.after_iteration(self.epoch_num, metrics, self.tensors, self.state)


class ContinuousAgent(Ranked, A2CAgent):
    """PPO with continuous actions."""


class DiscreteAgent(Ranked, DiscreteA2CAgent):
    """PPO that chooses among discrete actions."""


AGENTS = {"a2c_continuous": ContinuousAgent, "a2c_discrete": DiscreteAgent}


def _parameters(training: Training) -> dict[str, Any]:
    """The agent's configuration with what the plan decides."""
    params = copy.deepcopy(training.agent)
    env = RlGamesEnv(training.environments, discrete=params["algo"]["name"] == "a2c_discrete")
    params["config"] |= {
        "name": training.task["name"],
        "env_name": training.task["name"],
        "env_info": env.info,
        "vec_env": env,
        "num_actors": training.environments.num_envs,
        "device": str(training.rank.device),
        "max_epochs": training.max_iterations,  # the end of a linear schedule
        "reward_shaper": DefaultRewardsShaper(),  # the task's scale is the environments'
        "features": {"observer": AlgoObserver()},
        "train_dir": str(training.log_dir.parent),
        "full_experiment_name": training.log_dir.name,
    }
    return params


def main() -> None:
    """Train as the plan in LAUNCHER_RUN_DIR says."""
    with training() as here:
        name = here.agent["algo"]["name"]
        if name not in AGENTS:
            raise RuntimeError(f"agent.algo.name={name} is not supported: {', '.join(AGENTS)} are")
        agent = AGENTS[name](here)
        agent.resume()
        here.run(agent.learn, agent.policy)


if __name__ == "__main__":
    main()
