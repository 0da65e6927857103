"""Options of TRL's scripts that follow from the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launcher.config.batch import ACCUMULATION, batch_of, uses_training_arguments
from launcher.config.schema import Config, Device, MixedPrecision
from launcher.config.task_args import value_of, words

_PRECISION: dict[MixedPrecision | None, dict[str, str]] = {
    MixedPrecision.no: {"bf16": "false"},
    MixedPrecision.fp16: {"fp16": "true"},
    MixedPrecision.bf16: {"bf16": "true"},
}
"""TRL computes in bf16 unless its own options say otherwise, whatever Accelerate's environment says."""


def options(config: Config, run_dir: Path) -> Iterator[str]:
    """What a TRL script is told besides ``task.args``, which win; nothing for other scripts.

    The output goes where node agents look for checkpoints to go on from.
    """
    if not uses_training_arguments(config):
        return
    batch = batch_of(config)
    given = words(config.task.args)
    defaults = {
        "output_dir": run_dir / "checkpoints",
        "seed": config.seed,
        "max_steps": config.max_iterations,
        ACCUMULATION: batch.accumulation if batch else None,
        "use_cpu": "true" if config.cluster.device is Device.cpu else None,
        **_PRECISION.get(config.library.accelerate.mixed_precision, {}),
    }
    for name, value in defaults.items():
        if value is not None and value_of(name, given) is None:
            yield from (f"--{name}", str(value))
