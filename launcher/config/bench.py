"""What a benchmark measures, and which configurations of one would give no meaningful number."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config.schema import Cluster, Config, Registry, Scaling, Scheduler, Workload
from launcher.config.task_args import words
from launcher.errors import UserError

_WARMUP = {Workload.startup: 0, Workload.runtime: 50, Workload.training: 2}


def units(config: Config) -> int:
    """How many iterations there are in all; where only steps are measured, how many steps of each environment."""
    if config.bench.workload is Workload.runtime:
        return warmup(config) + config.bench.steps
    if config.bench.workload is Workload.startup:
        return 1
    return config.max_iterations or config.task.max_iterations


def warmup(config: Config) -> int:
    """How many of them come before the measurement, which they are left out of."""
    bench = config.bench
    return _WARMUP[bench.workload or Workload.startup] if bench.warmup is None else bench.warmup


def problems(config: Config) -> Iterator[str]:
    """One line for each thing that a benchmark cannot have."""
    workload = config.bench.workload
    if workload is None:
        return
    word = f"bench.workload={workload.value}"
    if config.library.module is None or config.library.registry is Registry.mjlab:
        yield (
            f"{word} measures tasks of this launcher's own libraries and Isaac Lab's, and library={config.library.name}"
            " is none of them: use rsl_rl, rl_games, skrl, skrl_jax or isaaclab"
        )
    if config.library.registry is Registry.isaaclab:
        yield from (f"{word}: {problem}" for problem in _isaaclab(words(config.task.args), workload))
    if config.task.record:
        yield f"{word} cannot record a video: what rank 0 draws, the others wait for; task.record=false"
    if workload is Workload.training and config.task.solved is not None:
        yield f"{word} cannot end when the task is solved: it would measure another number of iterations each time"
    if config.resume is not None:
        yield f"{word} starts from nothing: leave out resume={config.resume}"
    if config.cluster.elastic or config.cluster.spare_nodes:
        yield f"{word} needs a fixed number of nodes: no range in cluster.nodes, and cluster.spare_nodes=0"
    if units(config) <= warmup(config):
        yield (
            f"max_iterations={units(config)} leaves nothing to measure after a warm-up of {warmup(config)}: raise it,"
            " or set bench.warmup"
        )


def _isaaclab(arguments: list[str], workload: Workload) -> Iterator[str]:
    """Arguments of Isaac Lab's own benchmark that say otherwise than the configuration does, or end it early."""
    for word in arguments:
        flag = word.partition("=")[0]
        if flag in _INSTEAD:
            yield f"task.args has {flag}: {_INSTEAD[flag]}"
        if workload is not Workload.training and flag.startswith(("agent.", "--agent", "--algorithm")):
            yield f"task.args has {flag}, and there is no agent: leave it out"


_INSTEAD = {
    "--task": "set task.env",
    "--num_envs": "set num_envs",
    "--max_iterations": "set max_iterations",
    "--num_steps": "set bench.steps",
    "--seed": "set seed",
    "--output_path": "its result is in benchmark.json; leave it out",
    "--video": "what is drawn, the others wait for; leave it out",
    "--check_success": "it would measure another number of iterations each time; leave it out",
    "--checkpoint": "it starts from nothing; leave it out",
}


def scaling_runs(config: Config) -> list[list[str]]:
    """The overrides of the runs that show how a benchmark scales, in the order in which they are to be done.

    One of each number of ranks, then all of them again: a machine that gets slower meanwhile does so for all.

    Raises:
        UserError: a number of ranks that does not fill its nodes, or does not divide the environments.
    """
    bench, num_envs = config.bench, config.num_envs or config.task.num_envs
    if config.cluster.scheduler is Scheduler.none:
        raise UserError("bench scaling starts its runs itself: it needs Slurm, or this machine")
    if not bench.world_sizes or not bench.scaling or min(bench.world_sizes) < 1:
        raise UserError("bench.world_sizes are numbers of ranks, and bench.scaling is weak, strong or both")
    wanted = [(kind, ranks) for kind in bench.scaling for ranks in sorted(set(bench.world_sizes))]
    runs = [[*place(config.cluster, ranks), f"num_envs={envs_per_rank(kind, num_envs, ranks)}"]
            for kind, ranks in wanted]  # fmt: skip
    once = [list(words) for words in dict.fromkeys(map(tuple, runs))]  # one rank is the same in both
    return once * bench.repetitions


def envs_per_rank(kind: Scaling, num_envs: int, ranks: int) -> int:
    """Environments of each rank, where one alone has `num_envs`.

    Raises:
        UserError: they cannot be shared out evenly.
    """
    if kind is Scaling.weak:
        return num_envs
    if num_envs % ranks:
        raise UserError(
            f"num_envs={num_envs} cannot be shared out evenly over {ranks} ranks: use a multiple of {ranks}, or"
            " bench.scaling=[weak]"
        )
    return num_envs // ranks


def place(cluster: Cluster, ranks: int) -> list[str]:
    """Overrides for so many ranks: on one node as long as they fit there, then on whole nodes.

    Raises:
        UserError: they would fill some node in part.
    """
    most, gpus = cluster.ranks_per_node, cluster.gpus_per_node
    if cluster.scheduler is Scheduler.local or ranks <= most:
        share = [f"cluster.gpus_per_node={max(1, gpus * ranks // most)}"] if gpus else []
        return ["cluster.nodes=1", f"cluster.nproc_per_node={ranks}", *share]
    if ranks % most:
        raise UserError(f"bench.world_sizes: {ranks} ranks do not fill whole nodes of {most}: use a multiple of {most}")
    return [f"cluster.nodes={ranks // most}", f"cluster.nproc_per_node={most}"]
