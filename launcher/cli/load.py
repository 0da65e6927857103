"""How busy the nodes of a run are, in the tables of ``status``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from launcher.records.samples import Use, use_of

SHORT = ("GPU", "CPU", "MEMORY")
"""Headings for a whole run in its line."""
HEADINGS = ("NODE", "GPU", "LEAST", "GPU MEMORY", "CPU", "MEMORY", "AGE")
"""Headings for one node in a line."""
_NEAR = 0.85
"""The share of its limit from which a run's memory is worth a column."""


def short_cells(samples: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Mean and least use of all GPUs, mean use of the CPUs, memory near its limit; by samples that are not stale.

    The least is named with its node where there are several.
    """
    uses = [use_of(sample) for sample in samples if not sample["stale"]]
    cpus = [use.cpu for use in uses if use.cpu is not None]
    fullest = max(uses, key=lambda use: use.memory, default=None)
    near = fullest is not None and fullest.memory >= _NEAR
    return (
        _gpus(uses),
        _percent(mean(cpus)) if cpus else "",
        f"{_percent(fullest.memory)}{_on(fullest, uses)}" if fullest is not None and near else "",
    )


def _gpus(uses: Sequence[Use]) -> str:
    values = [value for use in uses for value in use.gpus]
    if len(values) < 2:
        return "".join(map(_percent, values))
    least = min((use for use in uses if use.gpus), key=lambda use: min(use.gpus))
    return f"{_percent(mean(values))}, least {_percent(min(least.gpus))}{_on(least, uses)}"


def _on(one: Use, uses: Sequence[Use]) -> str:
    return f" {one.host}" if len(uses) > 1 else ""


def cells(sample: Mapping[str, Any]) -> tuple[str, ...]:
    """A node; of one whose newest sample is stale only how old that is."""
    age = f"{sample['age_s']:.0f} s"
    if sample["stale"]:
        return (sample["host"], "", "", "", "", "", f"{age}: too old")
    use = use_of(sample)
    least = min(use.gpus) if len(use.gpus) > 1 else None
    shares = (use.gpu, least, use.gpu_memory, use.cpu, use.memory)
    return (use.host, *("" if share is None else _percent(share) for share in shares), age)


def _percent(share: float) -> str:
    return f"{share:.0%}"
