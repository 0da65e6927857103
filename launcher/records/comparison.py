"""Two bundles of benchmarks side by side, and which of their differences are more than noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from launcher.records.bundle import parts_of
from launcher.records.columns import is_number
from launcher.records.files import Record
from launcher.records.isaaclab import all_versions

FASTER, SLOWER = "faster", "slower"

_SAME = ("library", "world_size", "num_nodes", "num_envs_per_rank", "device", "start_method", "warmup")
_RATES = {"total_fps": ("throughput", "frames/s"), "collection_fps": ("while stepping", "frames/s")}


def compared(first: Record, second: Record) -> Record:
    """The differences of two bundles of the same kind of benchmark.

    Returns:
        ``differs``: what was not the same in the two, which makes their numbers differ, too; ``measures``: of each
        number both values, ``change`` (of the second against the first, a fraction), ``noise`` (likewise, None
        where nothing tells), and ``verdict``, empty for a difference within the noise.
    """
    return {"differs": list(_circumstances(first, second)), "measures": list(_measures(first, second))}


def _circumstances(first: Record, second: Record) -> Iterator[Record]:
    pairs = {"task": (first["run"]["task"], second["run"]["task"])}
    pairs |= {"status": (first["run"]["status"], second["run"]["status"])}
    pairs |= {name: (first["extra"].get(name), second["extra"].get(name)) for name in _SAME}
    machines = [bundle["hardware"] or {} for bundle in (first, second)]
    pairs |= {name: (machines[0].get(name), machines[1].get(name)) for name in ("hostname", "cpu_name", "cpu_count")}
    pairs["GPUs"] = (_gpus(machines[0]), _gpus(machines[1]))
    versions = list(map(all_versions, (first, second)))
    pairs |= {name: (versions[0].get(name), versions[1].get(name)) for name in sorted({*versions[0], *versions[1]})}
    yield from ({"name": name, "first": a, "second": b} for name, (a, b) in pairs.items() if a != b)


def _gpus(machine: Record) -> str | None:
    return ", ".join(gpu["name"] for gpu in machine.get("gpu_devices", ())) or None


def _measures(first: Record, second: Record) -> Iterator[Record]:
    for name, unit, a, b, high_is_good in _values(first, second):
        if is_number(a["mean"]) and is_number(b["mean"]):
            yield {"name": name, "unit": unit, "first": a["mean"], "second": b["mean"], **_verdict(a, b, high_is_good)}


_Value = tuple[str, str, Record, Record, bool]


def _values(first: Record, second: Record) -> Iterator[_Value]:
    """Name, unit, both values, and whether a high one is good."""
    runs = [bundle.get("runtime") or {} for bundle in (first, second)]
    for key, (name, unit) in _RATES.items():
        yield name, unit, _spread(runs[0].get(key)), _spread(runs[1].get(key)), True
    yield "iteration", "s", _spread(runs[0].get("iteration_time_s")), _spread(runs[1].get("iteration_time_s")), False
    phases = [bundle.get("phases") or {} for bundle in (first, second)]
    parts = [parts_of(bundle) for bundle in (first, second)]
    starts = [{name: phase["total_time_s"] for name, phase in one.items()} for one in phases]
    for one, other in (starts, parts):
        for name in (name for name in one if name in other):
            yield name.replace("_", " "), "s", _spread(one[name]), _spread(other[name]), False
    busy = [bundle.get("resources") or {} for bundle in (first, second)]
    for name, unit in (("ram_gb", "GiB"), ("gpu_mem_gb", "GiB")):
        yield name, unit, _peak(busy[0].get(name)), _peak(busy[1].get(name)), False


def _spread(value: Any) -> Record:
    return value if isinstance(value, dict) else {"mean": value, "std": None}


def _peak(value: Record | None) -> Record:
    return {"mean": value and value["peak"], "std": None}


def _verdict(first: Record, second: Record, high_is_good: bool) -> Record:
    """Noise is how far single iterations of the two typically differ: coarse, for runs differ more than iterations."""
    if not first["mean"]:
        return {"change": None, "noise": None, "verdict": ""}
    change = second["mean"] / first["mean"] - 1
    if first["std"] is None or second["std"] is None:
        return {"change": change, "noise": None, "verdict": ""}
    noise = math.hypot(first["std"], second["std"]) / first["mean"]
    if abs(change) <= noise:
        return {"change": change, "noise": noise, "verdict": ""}
    return {"change": change, "noise": noise, "verdict": FASTER if (change > 0) == high_is_good else SLOWER}
