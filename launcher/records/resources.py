"""How busy the nodes of an attempt were, in few numbers, from the samples of their agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.records.columns import is_number
from launcher.records.files import Record
from launcher.records.measured import mean_std


def resources_by_node(samples: Sequence[Record]) -> dict[int, Record]:
    """Of each node, by its number, mean and spread over all of its samples and GPUs; in Isaac Lab's form."""
    return {
        node: {
            "gpu_util_pct": _spread(_of_gpus(mine, "utilisation", 100), peak=False),
            "gpu_mem_gb": _spread(_of_gpus(mine, "memory_used_mb", 1 / 1024)),
            "cpu_util_pct": _spread(_of_node(mine, "cpu", 100), peak=False),
            "ram_gb": _spread(_of_node(mine, "memory_used_mb", 1 / 1024)),
        }
        for node in sorted({sample["node"] for sample in samples})
        if (mine := [sample for sample in samples if sample["node"] == node])
    }


def _of_gpus(samples: Sequence[Record], key: str, scale: float) -> Iterator[float]:
    for sample in samples:
        for gpu in sample.get("gpus") or ():
            if is_number(value := gpu.get(key)):
                yield value * scale


def _of_node(samples: Sequence[Record], key: str, scale: float) -> Iterator[float]:
    return (sample[key] * scale for sample in samples if is_number(sample.get(key)))


def _spread(values: Iterator[float], peak: bool = True) -> Record | None:
    found = list(values)
    return {**mean_std(found), **({} if peak else {"peak": None})} if found else None
