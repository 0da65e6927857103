"""The environment of the ranks, in layers; the origin of every value is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.config.schema import Cluster, Config, Workaround
from launcher.plan.plan import Resources, Setting


def layers(config: Config, run_dir: Path, resources: Resources) -> tuple[Setting, ...]:
    """All settings, the weakest layer first: the launcher's, the library's, NCCL workarounds, the cluster's.

    Nothing of NCCL is set that no profile and no command line asked for.
    """
    return (
        *_launcher(run_dir, resources),
        *_mapping(config.library.env, f"library {config.library.name}"),
        *_workarounds(config.nccl),
        *_interface(config.cluster),
        *_mapping(config.cluster.env, f"cluster {config.cluster.name}"),
    )


def _launcher(run_dir: Path, resources: Resources) -> Iterator[Setting]:
    yield Setting("PYTHONUNBUFFERED", "1", "launcher", "the last lines of a dying rank reach its log")
    yield Setting("LAUNCHER_RUN_DIR", str(run_dir), "launcher", "the records of this run")
    yield Setting("LAUNCHER_CHECKPOINT_DIR", str(run_dir / "checkpoints"), "launcher", "where checkpoints belong")
    yield Setting("LAUNCHER_PROGRESS", str(run_dir / "metrics.jsonl"), "launcher", "one JSON object per iteration")
    yield Setting("LAUNCHER_WORLD_SIZE", str(resources.world_size), "launcher", "the planned number of ranks")


def _mapping(values: Mapping[str, str], origin: str) -> Iterator[Setting]:
    return (Setting(name, value, origin) for name, value in values.items())


def _workarounds(chosen: Mapping[str, Workaround]) -> Iterator[Setting]:
    for name, workaround in chosen.items():
        for variable, value in workaround.env.items():
            yield Setting(variable, value, f"nccl {name}", workaround.symptom)


def _interface(cluster: Cluster) -> Iterator[Setting]:
    """NCCL takes a name as a prefix (eth0 is eth01 too) unless `=` stands before it; gloo always takes it exactly."""
    if cluster.network_interface is not None:
        origin = f"cluster {cluster.name}"
        yield Setting("NCCL_SOCKET_IFNAME", f"={cluster.network_interface}", origin, "network_interface, exact match")
        yield Setting("GLOO_SOCKET_IFNAME", cluster.network_interface, origin, "network_interface, for gloo")
