"""Arguments of the libraries that bring their own tasks and their own command line: Isaac Lab and mjlab."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config.bench import warmup
from launcher.config.schema import Config, Registry, Workload
from launcher.config.task_args import words


def arguments(config: Config, run_id: str) -> Iterator[str]:
    """What the library's own `train` is told. ``task.args`` come last and so win; nothing for other libraries.

    What only a node can know (devices, the checkpoint to go on from) is added there.
    """
    registry = config.library.registry
    if registry is Registry.gymnasium:
        return
    yield from _isaaclab(config, run_id) if registry is Registry.isaaclab else _mjlab(config)
    yield from words(config.task.args)


def _isaaclab(config: Config, run_id: str) -> Iterator[str]:
    """The run's id stands for `train_multigpu`'s time stamp, which would be another one on every node."""
    workload, library = config.bench.workload, config.library.rl_library
    assert library is not None  # a validated configuration
    learns = workload in (None, Workload.training)
    if workload is not None:
        yield from ("--workflow", workload.value)
    if learns:
        yield from ("--rl_library", library.value)
    yield from ("--task", str(config.task.env), "--num_envs", str(_num_envs(config)))
    if learns:
        yield from ("--max_iterations", str(_max_iterations(config)))
    if workload is Workload.runtime:
        yield from ("--num_steps", str(config.bench.steps), "--warmup_steps", str(warmup(config)))
    yield from ("--seed", str(config.seed))
    if workload is None:
        yield from ("--run_timestamp", run_id)


def _mjlab(config: Config) -> Iterator[str]:
    yield str(config.task.env)
    yield from ("--env.scene.num-envs", str(_num_envs(config)))
    yield from ("--agent.max-iterations", str(_max_iterations(config)))
    yield from ("--agent.seed", str(config.seed), "--agent.logger", "tensorboard")


def _num_envs(config: Config) -> int:
    return config.num_envs or config.task.num_envs


def _max_iterations(config: Config) -> int:
    return config.max_iterations or config.task.max_iterations
