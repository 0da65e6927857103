"""What the types alone cannot say: which values make sense, and which fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.config.schema import Cluster, Config, Scheduler
from launcher.config.units import parse_memory, parse_time
from launcher.errors import UserError

_POSITIVE = (
    ("cluster.nodes", lambda c: c.cluster.nodes),
    ("cluster.nproc_per_node", lambda c: c.cluster.nproc_per_node),
    ("cluster.cpus_per_gpu", lambda c: c.cluster.cpus_per_gpu),
    ("max_iterations", lambda c: c.max_iterations),
    ("num_envs", lambda c: c.num_envs),
    ("task.max_iterations", lambda c: c.task.max_iterations),
    ("task.num_envs", lambda c: c.task.num_envs),
    ("checkpoint.every", lambda c: c.checkpoint.every),
    ("checkpoint.keep", lambda c: c.checkpoint.keep),
    ("watch.rendezvous", lambda c: c.watch.rendezvous),
    ("cluster.signal_lead", lambda c: c.cluster.signal_lead),
)
_NOT_NEGATIVE = (
    ("seed", lambda c: c.seed),
    ("cluster.gpus_per_node", lambda c: c.cluster.gpus_per_node),
    ("watch.stop_grace", lambda c: c.watch.stop_grace),
)


def validate(config: Config) -> None:
    """Check the whole configuration.

    Raises:
        UserError: the first value that makes no sense, with its key.
    """
    for problem in _problems(config):
        raise UserError(problem)


def _problems(config: Config) -> Iterator[str]:
    yield from _below(_POSITIVE, config, 1)
    yield from _below(_NOT_NEGATIVE, config, 0)
    yield from _units(config.cluster)
    yield from _control_characters(config)
    yield from _task_fits_library(config)
    yield from _contradictions(config)
    if config.cluster.scheduler is Scheduler.local and config.cluster.nodes > 1:
        yield f"cluster.nodes={config.cluster.nodes} needs a Slurm cluster: this machine is one node"


def _below(
    numbers: tuple[tuple[str, Callable[[Config], int | None]], ...], config: Config, least: int
) -> Iterator[str]:
    for key, read in numbers:
        value = read(config)
        if value is not None and value < least:
            yield f"{key}={value} is too small: at least {least}"


def _units(cluster: Cluster) -> Iterator[str]:
    for key, text, parse in (("time", cluster.time, parse_time), ("mem_per_gpu", cluster.mem_per_gpu, parse_memory)):
        if text is not None:
            try:
                parse(text)
            except UserError as error:
                yield f"cluster.{key}: {error}"


def _control_characters(config: Config) -> Iterator[str]:
    """A newline in a value would end its #SBATCH line and start a line of its own."""
    texts = {
        "name": config.name,
        "runs_dir": config.runs_dir,
        **{f"cluster.{key}": value for key, value in vars(config.cluster).items() if isinstance(value, str)},
        **{f"cluster.extra_directives.{key}": str(value) for key, value in config.cluster.extra_directives.items()},
    }
    for key, text in texts.items():
        if text is not None and any(ord(character) < 32 or ord(character) == 127 for character in text):
            yield f"{key} holds a control character (a newline or the like), which Slurm cannot carry"


def _task_fits_library(config: Config) -> Iterator[str]:
    task, library = config.task, config.library
    if library.module is not None and task.env is None:
        yield f"library={library.name} needs an environment, and task={task.name} has none: use library=torchrun"
    if library.module is None and task.path is None and task.module is None:
        yield f"library={library.name} runs a script: give task=script and task.path=FILE or task.module=PKG.MODULE"
    if task.path is not None and task.module is not None:
        yield "task.path and task.module are both set: give one of them"
    if task.path is not None and not Path(task.path).expanduser().is_file():
        yield f"task.path: there is no file '{task.path}'"


def _contradictions(config: Config) -> Iterator[str]:
    for name, workaround in config.nccl.items():
        for other in workaround.conflicts:
            if other in config.nccl:
                yield f"nccl workarounds '{name}' and '{other}' contradict each other: choose one"
