"""The environment of the ranks, in layers; the origin of every value is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.config.batch import batch_of
from launcher.config.schema import Accelerate, AccelerateMode, Config, Device, Workaround
from launcher.plan.plan import Resources, Setting


def layers(config: Config, run_dir: Path, submit_dir: Path, resources: Resources) -> tuple[Setting, ...]:
    """All settings, the weakest layer first: the launcher's, the library's, NCCL workarounds, the cluster's.

    Nothing of NCCL is set that no profile and no command line asked for.
    """
    return (
        *_launcher(run_dir, submit_dir, resources),
        *_watch(config),
        *_mapping(config.library.env, f"library {config.library.name}"),
        *_prepare(config),
        *_accelerate(config),
        *workaround_settings(config.nccl),
        *_mapping(config.cluster.env, f"cluster {config.cluster.name}"),
    )


def _launcher(run_dir: Path, submit_dir: Path, resources: Resources) -> Iterator[Setting]:
    yield Setting("PYTHONUNBUFFERED", "1", "launcher", "the last lines of a dying rank reach its log")
    yield Setting("LAUNCHER_RUN_DIR", str(run_dir), "launcher", "the records of this run")
    yield Setting("LAUNCHER_CHECKPOINT_DIR", str(run_dir / "checkpoints"), "launcher", "where checkpoints belong")
    yield Setting("LAUNCHER_PROGRESS", str(run_dir / "metrics.jsonl"), "launcher", "one JSON object per iteration")
    yield Setting("LAUNCHER_SUBMIT_DIR", str(submit_dir), "launcher", "where the run was submitted")
    yield Setting("LAUNCHER_WORLD_SIZE", str(resources.world_size), "launcher", "the planned number of ranks")


def _watch(config: Config) -> Iterator[Setting]:
    if seconds := config.watch.sample_seconds:
        yield Setting("LAUNCHER_WATCH_SECONDS", f"{seconds:g}", "launcher", "how often the ranks are looked at")


def _mapping(values: Mapping[str, str], origin: str) -> Iterator[Setting]:
    return (Setting(name, value, origin) for name, value in values.items())


def _prepare(config: Config) -> Iterator[Setting]:
    if config.library.prepare is not None:
        origin = f"library {config.library.name}"
        yield Setting("LAUNCHER_PREPARE", config.library.prepare, origin, "adds what only the node can find out")


_SHARDING = {
    AccelerateMode.ddp: {},
    AccelerateMode.fsdp: {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"},
    AccelerateMode.fsdp2: {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
    **{
        mode: {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": mode.value[-1]}
        for mode in (AccelerateMode.zero1, AccelerateMode.zero2, AccelerateMode.zero3)
    },
}


def _accelerate(config: Config) -> Iterator[Setting]:
    """What the configuration decides of Accelerate's variables; `prepare` adds all the others on the node."""
    settings, batch = config.library.accelerate, batch_of(config)
    if batch is None:
        return
    if settings.mode is not None:
        for name, value in _SHARDING[settings.mode].items():
            yield Setting(name, value, "library.accelerate.mode", settings.mode.value)
    if settings.mixed_precision is not None:
        value = settings.mixed_precision.value
        yield Setting("ACCELERATE_MIXED_PRECISION", value, "library.accelerate.mixed_precision")
    if batch.accumulation is not None:
        name, value = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", str(batch.accumulation)
        yield Setting(name, value, f"library {config.library.name}", "micro batches per optimizer step")
    if config.cluster.device is Device.cpu and not _may_be_deepspeed(settings):
        yield Setting("ACCELERATE_USE_CPU", "true", "cluster.device", "without it the ranks would train independently")


def _may_be_deepspeed(settings: Accelerate) -> bool:
    """DeepSpeed on a CPU is asked for by other means; whether a file asks for DeepSpeed is seen on the node."""
    by_file = settings.mode is None and settings.config_file is not None
    return by_file or "ACCELERATE_USE_DEEPSPEED" in _SHARDING.get(settings.mode or AccelerateMode.ddp, {})


def workaround_settings(chosen: Mapping[str, Workaround]) -> Iterator[Setting]:
    """What entries of the catalogue set."""
    for name, entry in chosen.items():
        origin, hosts = f"nccl {name}", entry.hosts or ""
        for variable, value in entry.env.items():
            yield Setting(variable, value, origin, entry.symptom, hosts)
        for variable, file in entry.log_files.items():
            yield Setting(variable, file, origin, entry.symptom, hosts, in_attempt=True)
