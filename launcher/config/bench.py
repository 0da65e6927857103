"""What a benchmark measures, and which configurations of one would give no meaningful number."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config.schema import Config, Registry, Workload

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
    if config.library.module is None or config.library.registry is not Registry.gymnasium:
        yield (
            f"{word} measures tasks of this launcher's own libraries, and library={config.library.name} is none of"
            " them: use rsl_rl, rl_games, skrl or skrl_jax"
        )
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
