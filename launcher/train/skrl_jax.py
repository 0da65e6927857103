"""skrl's PPO on JAX as one rank: ``python -m launcher.train.skrl_jax``, started by torchrun.

Environments, records and decisions are those of the other libraries, on torch and its gloo; JAX does the gradients,
among its own processes. What skrl does by itself and what is added here: its launcher discards exit codes and leaves
workers behind (so torchrun starts the ranks, and the address is agreed on here), it lets the normalisers of the ranks
drift apart (so they are pooled), and counts steps and learning rates from the last start (so they are kept).
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import jax.experimental.multihost_utils  # pyright: ignore[reportUnusedImport]  # skrl needs it and does not import it
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist

from launcher.train.normalisers import pool
from launcher.train.rank import Rank
from launcher.train.skrl_learner import Learner, model_arguments, place, ppo_config  # isort: split

from skrl import config
from skrl.agents.jax.ppo import PPO
from skrl.memories.jax import RandomMemory
from skrl.resources.preprocessors.jax import RunningStandardScaler
from skrl.resources.schedulers.jax import KLAdaptiveLR
from skrl.utils.model_instantiators.jax import deterministic_model, gaussian_model

from launcher.train.training import State, Training, training


class PooledScaler(RunningStandardScaler):
    """skrl's normaliser over the samples of all ranks."""

    def __call__(self, x: Any, *, train: bool = False, inverse: bool = False) -> Any:
        if train and x is not None:
            samples = _to_torch(x).flatten(end_dim=-2)
            mean, variance, count = pool(samples.mean(0), samples.var(0), len(samples))
            self._parallel_variance(_to_jax(mean), _to_jax(variance), count)
        return super().__call__(x, inverse=inverse)


CLASSES = {"RunningStandardScaler": PooledScaler, "KLAdaptiveLR": KLAdaptiveLR}


class JaxLearner(Learner):
    """PPO on JAX."""

    def __init__(self, training: Training) -> None:
        place(config.jax, training.rank)
        config.jax.key = training.rank.seed
        envs, device = training.environments, config.jax.device
        models: dict[str, Any] = {
            "policy": gaussian_model(**model_arguments(training, "policy", device)),
            "value": deterministic_model(**model_arguments(training, "value", device)),
        }
        for role, model in models.items():
            model.init_state_dict(role=role)
            model.reduce_parameters = _mean_over_ranks
        agent_config = ppo_config(training, device, CLASSES)
        agent = PPO(
            models=models,
            memory=RandomMemory(memory_size=agent_config["rollouts"], num_envs=envs.num_envs, device=device),
            observation_space=envs.observation_space,
            action_space=envs.action_space,
            device=device,
            cfg=agent_config,
        )
        super().__init__(training, agent)

    def to_skrl(self, tensor: torch.Tensor) -> jax.Array:
        return _to_jax(tensor)

    def to_torch(self, array: jax.Array) -> torch.Tensor:
        return _to_torch(array)

    def step(self, timestep: int) -> None:
        self.agent.policy._g_i = timestep  # the actions' random numbers follow from it, after a resume too
        super().step(timestep)

    def learning_rate(self) -> float:
        return self.agent.policy_learning_rate

    def tensors(self) -> Iterator[torch.Tensor]:
        return map(_to_torch, jax.tree.leaves(self._shared()))

    def state(self) -> State:
        agent = self.agent
        return {
            "agent": list(self.tensors()),
            "optimizers": [_to_torch(leaf) for leaf in jax.tree.leaves(self._optimizers())],
            "learning_rates": [agent.policy_learning_rate, agent.value_learning_rate],
        }

    def load(self, state: State) -> None:
        agent = self.agent
        for module, values in zip(self._modules(), _like(self._shared(), state["agent"]), strict=True):
            module.state_dict = module.state_dict.replace(params=values)
        policy, value = _like(self._optimizers(), state["optimizers"])
        agent.policy_optimizer = agent.policy_optimizer.replace(state=policy)
        agent.value_optimizer = agent.value_optimizer.replace(state=value)
        agent.policy_learning_rate, agent.value_learning_rate = state["learning_rates"]

    def _modules(self) -> list[Any]:
        """Models and normalisers."""
        return [module for name, module in self.agent.checkpoint_modules.items() if "optimizer" not in name]

    def _shared(self) -> list[Any]:
        return [module.state_dict.params for module in self._modules()]

    def _optimizers(self) -> list[Any]:
        return [self.agent.policy_optimizer.state, self.agent.value_optimizer.state]


_sum_over_ranks = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")


def _mean_over_ranks(tree: Any) -> Any:
    """What skrl's ``Model.reduce_parameters`` does, compiled once: skrl makes a new function for every call."""
    flat, unflatten = jax.flatten_util.ravel_pytree(tree)
    return unflatten(_sum_over_ranks(flat[None])[0] / jax.process_count())


def _to_jax(tensor: torch.Tensor) -> jax.Array:
    return jnp.asarray(tensor.numpy())


def _to_torch(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _like(tree: Any, leaves: list[torch.Tensor]) -> Any:
    """A tree of the same shape with other leaves."""
    return jax.tree.unflatten(jax.tree.structure(tree), [_to_jax(leaf) for leaf in leaves])


def _join(rank: Rank) -> None:
    """Join the other ranks' JAX processes. Rank 0 leads them at a port that is free on its host, and names it."""
    if rank.world_size == 1:
        return
    port = [_free_port() if rank.rank == 0 else 0]
    dist.broadcast_object_list(port)
    host = os.environ["MASTER_ADDR"]
    address = f"[{host}]:{port[0]}" if ":" in host else f"{host}:{port[0]}"
    jax.distributed.initialize(address, rank.world_size, rank.rank, local_device_ids=rank.local_rank)


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def _train() -> None:
    with training("cpu") as here:
        wish = here.plan["device"]
        if wish == "auto" and torch.cuda.is_available():
            wish = "cuda"  # a JAX without CUDA says so, instead of leaving the GPU idle
        if wish != "auto":
            jax.config.update("jax_platforms", wish)
        _join(here.rank)
        learner = JaxLearner(here)
        print(f"JAX computes on {config.jax.device}", flush=True)
        learner.resume()
        here.run(learner.learn, learner.policy)


def main() -> None:
    """Train as the plan in LAUNCHER_RUN_DIR says.

    A rank that fails leaves at once: at its exit JAX would wait for the others, which wait for this one.
    """
    try:
        _train()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
