"""skrl's PPO on PyTorch as one rank: ``python -m launcher.train.skrl``, started by torchrun.

What the library does by itself and what is added here: it hard-codes NCCL and the device (so it joins the process
group that is there, on any device), lets the normalisers of the ranks drift apart (so they are pooled), counts steps
from the last start and leaves the learning-rate scheduler out of its checkpoints (so both are kept), and measures no
throughput.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from launcher.train.normalisers import pool
from launcher.train.skrl_learner import Learner, model_arguments, place, ppo_config  # isort: split

from skrl import config
from skrl.agents.torch.ppo import PPO
from skrl.memories.torch import RandomMemory
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.resources.schedulers.torch import KLAdaptiveLR
from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

from launcher.train.training import State, Training, training


class PooledScaler(RunningStandardScaler):
    """skrl's normaliser over the samples of all ranks."""

    def _parallel_variance(self, input_mean: torch.Tensor, input_var: torch.Tensor, input_count: Any) -> None:
        super()._parallel_variance(*pool(input_mean, input_var, input_count))


CLASSES = {"RunningStandardScaler": PooledScaler, "KLAdaptiveLR": KLAdaptiveLR}


class TorchLearner(Learner):
    """PPO on PyTorch."""

    def __init__(self, training: Training) -> None:
        place(config.torch, training.rank)
        envs, device = training.environments, training.rank.device
        models: dict[str, Any] = {
            "policy": gaussian_model(**model_arguments(training, "policy", device)),
            "value": deterministic_model(**model_arguments(training, "value", device)),
        }
        for role, model in models.items():
            model.init_state_dict(role=role)  # before it is broadcast: its layers take their shape from a first input
        agent_config = ppo_config(training, device, CLASSES)
        agent = PPO(
            models=models,
            memory=RandomMemory(memory_size=agent_config["rollouts"], num_envs=envs.num_envs, device=device),
            observation_space=envs.observation_space,
            action_space=envs.action_space,
            device=device,
            cfg=agent_config,
        )
        if agent.scheduler is not None:
            agent.checkpoint_modules["scheduler"] = agent.scheduler
        super().__init__(training, agent)

    def to_skrl(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def to_torch(self, array: torch.Tensor) -> torch.Tensor:
        return array

    def learning_rate(self) -> float:
        return self.agent.optimizer.param_groups[0]["lr"]

    def tensors(self) -> Iterator[torch.Tensor]:
        for module in self.agent.checkpoint_modules.values():
            if isinstance(module, torch.nn.Module):
                yield from module.state_dict().values()

    def state(self) -> State:
        return {"agent": {name: module.state_dict() for name, module in self.agent.checkpoint_modules.items()}}

    def load(self, state: State) -> None:
        for name, module in self.agent.checkpoint_modules.items():
            module.load_state_dict(state["agent"][name])


def main() -> None:
    """Train as the plan in LAUNCHER_RUN_DIR says."""
    with training() as here:
        learner = TorchLearner(here)
        learner.resume()
        here.run(learner.learn, learner.policy)


if __name__ == "__main__":
    main()
