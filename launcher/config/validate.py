"""What the types alone cannot say: which values make sense, and which fit together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.config import bench, container, nccl
from launcher.config.batch import batch_of, uses_training_arguments
from launcher.config.schema import (
    Accelerate,
    AccelerateMode,
    Checkpoint,
    Cluster,
    Config,
    Device,
    Library,
    MixedPrecision,
    Registry,
    Scheduler,
    StartMethod,
    Task,
    Watch,
)
from launcher.config.units import parse_budget, parse_memory, parse_range, parse_time
from launcher.errors import UserError

_POSITIVE = (
    ("cluster.nproc_per_node", lambda c: c.cluster.nproc_per_node),
    ("cluster.cpus_per_gpu", lambda c: c.cluster.cpus_per_gpu),
    ("max_iterations", lambda c: c.max_iterations),
    ("num_envs", lambda c: c.num_envs),
    ("task.max_iterations", lambda c: c.task.max_iterations),
    ("task.num_envs", lambda c: c.task.num_envs),
    ("task.global_batch_size", lambda c: c.task.global_batch_size),
    ("library.accelerate.gradient_accumulation_steps", lambda c: c.library.accelerate.gradient_accumulation_steps),
    ("checkpoint.every", lambda c: c.checkpoint.every),
    ("checkpoint.keep", lambda c: c.checkpoint.keep),
    ("watch.rendezvous", lambda c: c.watch.rendezvous),
    ("watch.preflight_seconds", lambda c: c.watch.preflight_seconds),
    ("watch.hang_floor", lambda c: c.watch.hang_floor),
    ("watch.hang_ceiling", lambda c: c.watch.hang_ceiling),
    ("watch.hang_first", lambda c: c.watch.hang_first),
    ("watch.hang_end", lambda c: c.watch.hang_end),
    ("watch.probe_seconds", lambda c: c.watch.probe_seconds),
    ("cluster.signal_lead", lambda c: c.cluster.signal_lead),
    ("sweep.parallel", lambda c: c.sweep.parallel),
    ("sweep.pack", lambda c: c.sweep.pack),
    ("bench.steps", lambda c: c.bench.steps),
    ("bench.repetitions", lambda c: c.bench.repetitions),
    ("retry.without_progress", lambda c: c.retry.without_progress),
)
_NOT_NEGATIVE = (
    ("seed", lambda c: c.seed),
    ("cluster.gpus_per_node", lambda c: c.cluster.gpus_per_node),
    ("watch.stop_grace", lambda c: c.watch.stop_grace),
    ("watch.sample_seconds", lambda c: c.watch.sample_seconds),
    ("cluster.spare_nodes", lambda c: c.cluster.spare_nodes),
    ("bench.warmup", lambda c: c.bench.warmup),
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
    if wrong := list(_units(config)):
        yield from wrong  # what follows reads the values
        return
    yield from _checkpoint(config.checkpoint)
    yield from _hang(config.watch)
    yield from _control_characters(config)
    yield from _task_fits_library(config)
    yield from _accelerate(config)
    yield from _arguments(config)
    yield from _site(config.cluster)
    yield from _start(config)
    yield from nccl.problems(config.nccl)
    yield from _hosts(config.cluster)
    yield from _nodes(config)
    yield from container.problems(config.cluster)
    yield from _one_gpu_per_rank(config.cluster)
    yield from _hyperparameters(config)
    yield from _notify(config)
    yield from bench.problems(config)


def _below(
    numbers: tuple[tuple[str, Callable[[Config], float | None]], ...], config: Config, least: int
) -> Iterator[str]:
    for key, read in numbers:
        value = read(config)
        if value is not None and value < least:
            yield f"{key}={value} is too small: at least {least}"


def _checkpoint(checkpoint: Checkpoint) -> Iterator[str]:
    if checkpoint.minutes is not None and not checkpoint.minutes > 0:
        yield f"checkpoint.minutes={checkpoint.minutes} is too small: more than 0, or null"
    if checkpoint.best is not None and not checkpoint.best.removeprefix("-"):
        yield f"checkpoint.best='{checkpoint.best}' names no metric: null keeps the last checkpoints only"


def _hang(watch: Watch) -> Iterator[str]:
    floor = watch.hang_floor
    if floor is not None and watch.hang_ceiling < floor:
        yield f"watch.hang_ceiling={watch.hang_ceiling} is below watch.hang_floor={floor}"
    if floor is not None and watch.hang_end is not None and watch.hang_end <= floor:
        yield f"watch.hang_end={watch.hang_end} has to come after the suspicion (watch.hang_floor={floor}), or be null"


_UNITS: tuple[tuple[str, Callable[[Config], Any], Callable[[Any], object]], ...] = (
    ("cluster.time", lambda c: c.cluster.time, parse_time),
    ("cluster.mem_per_gpu", lambda c: c.cluster.mem_per_gpu, parse_memory),
    ("cluster.nodes", lambda c: c.cluster.nodes, parse_range),
    ("retry.preempted", lambda c: c.retry.preempted, parse_budget),
    ("retry.time_limit", lambda c: c.retry.time_limit, parse_budget),
    ("retry.node_fail", lambda c: c.retry.node_fail, parse_budget),
    ("retry.crash", lambda c: c.retry.crash, parse_budget),
    ("retry.hang", lambda c: c.retry.hang, parse_budget),
    ("retry.avoid_node", lambda c: c.retry.avoid_node, parse_time),
)


def _units(config: Config) -> Iterator[str]:
    for key, read, parse in _UNITS:
        if (value := read(config)) is not None:
            try:
                parse(value)
            except UserError as error:
                yield f"{key}: {error}"


def _nodes(config: Config) -> Iterator[str]:
    cluster = config.cluster
    slurm = cluster.scheduler is Scheduler.slurm
    if cluster.scheduler is Scheduler.local and cluster.most_nodes > 1:
        yield f"cluster.nodes={cluster.nodes} needs a Slurm cluster: this machine is one node"
    if cluster.elastic and not slurm:
        yield f"cluster.nodes={cluster.nodes} is a choice for Slurm to make: give a number"
    if cluster.elastic and config.task.global_batch_size is not None:
        yield f"task.global_batch_size cannot be kept with cluster.nodes={cluster.nodes}: give a number of nodes"
    if cluster.spare_nodes and not slurm:
        yield f"cluster.spare_nodes={cluster.spare_nodes} are nodes of a Slurm job: choose a cluster"


def _control_characters(config: Config) -> Iterator[str]:
    """A newline in a value would end its #SBATCH line and start a line of its own."""
    texts = {
        "runs_dir": config.runs_dir,
        **{f"cluster.{key}": value for key, value in vars(config.cluster).items() if isinstance(value, str)},
        **{f"cluster.extra_directives.{key}": str(value) for key, value in config.cluster.extra_directives.items()},
    }
    for key, text in texts.items():
        if any(ord(character) < 32 or ord(character) == 127 for character in text):
            yield f"{key} holds a control character (a newline or the like), which Slurm cannot carry"


def _task_fits_library(config: Config) -> Iterator[str]:
    task, library = config.task, config.library
    if library.module is not None:
        yield from _registry(task, library)
    if library.module is None and task.path is None and task.module is None:
        yield f"library={library.name} runs a script: give task=script and task.path=FILE or task.module=PKG.MODULE"
    if task.path is not None and task.module is not None:
        yield "task.path and task.module are both set: give one of them"
    if task.path is not None and not Path(os.path.expanduser(task.path)).is_file():
        yield f"task.path: there is no file '{task.path}'"


_OWN_TASKS = {Registry.isaaclab: "isaac_cartpole", Registry.mjlab: "mjlab_cartpole"}


def _registry(task: Task, library: Library) -> Iterator[str]:
    fits = task.env is not None and task.registry is library.registry
    if not fits and library.registry in _OWN_TASKS:
        yield (
            f"library={library.name} trains {library.name}'s own tasks, and task={task.name} is none of them: use"
            f" task={_OWN_TASKS[library.registry]}, or task.registry={library.registry.value} task.env=ID"
        )
    elif task.env is None:
        yield f"library={library.name} needs an environment, and task={task.name} has none: use library=torchrun"
    elif not fits:
        yield f"task={task.name} is one of {task.registry.value}'s own: use library={task.registry.value}"
    if library.rl_library is None and library.registry is Registry.isaaclab:
        yield "library.rl_library is missing: rsl_rl, rl_games or skrl"
    if library.rl_library is not None and library.registry is not Registry.isaaclab:
        yield f"library.rl_library has no effect with library={library.name}: it is Isaac Lab's choice of a library"


def _accelerate(config: Config) -> Iterator[str]:
    settings = config.library.accelerate
    if not config.library.uses_accelerate and settings != Accelerate():
        yield f"library.accelerate has no effect with library={config.library.name}: use library=accelerate or trl"
    if settings.mode in (AccelerateMode.fsdp, AccelerateMode.fsdp2) and config.cluster.device is Device.cpu:
        yield (
            f"library.accelerate.mode={settings.mode.value} needs GPUs, and cluster.device=cpu: Accelerate would"
            " silently train with DDP; use mode=ddp or mode=zero3"
        )
    file = settings.config_file
    if file is not None and not Path(os.path.expanduser(file)).is_file():
        yield f"library.accelerate.config_file: there is no file '{file}'"
    if config.library.name == "trl" and settings.mixed_precision is MixedPrecision.fp8:
        yield "library.accelerate.mixed_precision=fp8 is not to be had with TRL's scripts: use no, fp16 or bf16"
    if config.library.name == "trl" and not uses_training_arguments(config):
        yield f"library=trl runs TRL's own scripts, and task={config.task.name} is none: use task=sft, dpo or grpo"


def _arguments(config: Config) -> Iterator[str]:
    if config.task.args is not None and not isinstance(config.task.args, (list, dict)):
        yield f"task.args={config.task.args} is neither a list of words nor a mapping of options"
        return
    try:
        batch_of(config)
    except UserError as error:
        yield str(error)


_DECIDED = {
    "nodes": "cluster.nodes",
    "ntasks": "cluster.nproc_per_node: the launcher's own task is one per node",
    "ntasks-per-node": "cluster.nproc_per_node: the launcher's own task is one per node",
    "array": "-m for a sweep",
    "output": "runs_dir: the output is in the run's directory",
    "error": "runs_dir: the output is in the run's directory",
}
"""Options of sbatch on which the node agents rely."""


def _site(cluster: Cluster) -> Iterator[str]:
    for key in nccl.BY_KEY.values():
        value = getattr(cluster, key)
        if value is not None and not re.fullmatch(r"[\w.:@-]+(,[\w.:@-]+)*", value):
            yield f"cluster.{key}='{value}' is no list of exact names: NCCL's signs = and ^ belong in cluster.env"
    if cluster.conda is not None and cluster.venv is not None:
        yield "cluster.conda and cluster.venv are both set: the ranks have one interpreter, give one of them"
    if cluster.scheduler is Scheduler.local and (cluster.conda or cluster.venv):
        yield "cluster.conda and cluster.venv are for jobs: without Slurm activate yours first, or set cluster.python"
    if cluster.scratch is not None and not cluster.scratch.startswith(("/", "$")):
        yield f"cluster.scratch='{cluster.scratch}' is no directory of a node: give an absolute path, or $NAME"
    for key in sorted(_DECIDED.keys() & set(map(str, cluster.extra_directives))):
        yield f"cluster.extra_directives.{key} would contradict the plan: use {_DECIDED[key]}"
    for key in cluster.extra_directives:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            yield f"cluster.extra_directives: '{key}' is no option of sbatch: write it as in --nice, without the dashes"


def _start(config: Config) -> Iterator[str]:
    """What the plan would have to overrule; `auto` finds its own way."""
    cluster, script = config.cluster, config.task.path or ""
    if cluster.start is not StartMethod.fork:
        return
    if cluster.container.runtime is not None:
        yield "cluster.start=fork is not to be had in a container: leave it to cluster.start=auto"
    elif config.library.spawn is not None:
        yield f"cluster.start=fork is not to be had with library={config.library.name}: {config.library.spawn}"
    elif config.library.module is None and script and not script.endswith(".py"):
        yield f"cluster.start=fork is for Python, and '{script}' is a command of its own: use cluster.start=auto"


def _hosts(cluster: Cluster) -> Iterator[str]:
    by_hand = cluster.scheduler is Scheduler.none
    if by_hand and cluster.hosts is None:
        yield "cluster.hosts is missing: where the commands are to be started, such as cluster.hosts=[a,b]"
    if not by_hand and cluster.hosts is not None:
        yield (
            "cluster.hosts is for machines without a scheduler: `python -m launcher commands …` prints a command for"
            " each of them"
        )


def _one_gpu_per_rank(cluster: Cluster) -> Iterator[str]:
    """NCCL and JAX refuse two ranks on one GPU, each with a message that names neither."""
    slurm, ranks = cluster.scheduler is Scheduler.slurm, cluster.ranks_per_node
    if slurm and cluster.device is Device.cuda and ranks > cluster.gpus_per_node:
        yield (
            f"cluster.device=cuda needs a GPU per rank: cluster.nproc_per_node={ranks} and"
            f" cluster.gpus_per_node={cluster.gpus_per_node}"
        )


def _notify(config: Config) -> Iterator[str]:
    notify = config.notify
    if notify.webhook is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", notify.webhook, re.ASCII):
        yield (
            "notify.webhook names the environment variable that holds the address, for the address is a secret: "
            "export MY_WEBHOOK=https://…, and notify.webhook=MY_WEBHOOK"
        )
    if notify.mail is not None and not re.fullmatch(r"[^\s,]+(,[^\s,]+)*", notify.mail):
        yield f"notify.mail='{notify.mail}' is no address"
    if notify.mail is not None and config.cluster.scheduler is not Scheduler.slurm:
        yield "notify.mail is written by Slurm, and this run is not for Slurm: use notify.webhook or notify.command"
    if notify.mail is not None and (own := {"mail-user", "mail-type"} & config.cluster.extra_directives.keys()):
        yield f"notify.mail and cluster.extra_directives.{min(own)} are both set: give one of them"


def _hyperparameters(config: Config) -> Iterator[str]:
    task, library = config.task, config.library
    adapter = library.module is not None and library.registry is Registry.gymnasium
    if adapter and task.env is not None and not config.agent:
        yield (
            f"there are no hyperparameters for task={task.name} under library={library.name}: write"
            f" agent/{library.name}/{task.name}.yaml in a directory that you give with --config-dir"
        )
