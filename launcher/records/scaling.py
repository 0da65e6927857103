"""How a benchmark scales: from the bundles of its runs to throughput, efficiency and what takes the time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from launcher.records.bundle import parts_of
from launcher.records.files import Record, read_json
from launcher.records.isaaclab import all_versions
from launcher.records.sweepdir import SweepDir

WEAK, STRONG = "weak", "strong"
FILE = "scaling.json"
"""In a sweep's directory: what was asked for, and what :func:`summed_up` made of it when somebody last looked."""


def asked_of(sweep: SweepDir) -> Record | None:
    """What was asked of a benchmark of scaling; None of another sweep."""
    return (read_json(sweep.path / FILE) or {}).get("asked")


def title_of(asked: Mapping[str, Any]) -> str:
    """What was measured: ``ant with rsl_rl on a100x2``."""
    return f"{asked['task']} with {asked['library']} on {asked['cluster']}"


def caption_of(found: Mapping[str, Any]) -> str:
    """What stands below a picture that is passed around: on what, when, and by which versions it was measured."""
    measured = found["measured"]
    hosts = len(measured["hosts"])
    parts = [
        ", ".join(measured["devices"]),
        f"{hosts} host{'s' if hosts != 1 else ''}" if hosts else "",
        " to ".join(dict.fromkeys(measured["days"])),
        *(f"{name} {', '.join(measured[name])}" for name in ("launcher", "torch", "commit") if measured[name]),
    ]
    return " · ".join(filter(None, parts))


def summed_up(asked: Mapping[str, Any], bundles: Sequence[Record]) -> Record:
    """What the runs have shown.

    Args:
        asked: ``num_envs``, the environments of one rank alone; ``world_sizes``; ``scaling``, a list of
            :data:`WEAK` and :data:`STRONG`; ``runs``, how many there are to be.
        bundles: of those that have ended.

    Returns:
        ``asked``; ``ended``, how many have; ``measured``, on what, when and by which versions; ``points``, one for each
        number of ranks and kind of scaling; ``findings``, sentences.
    """
    points = [
        point
        for kind in asked["scaling"]
        for point in _points(kind, asked["num_envs"], sorted(set(asked["world_sizes"])), bundles)
    ]
    return {
        "asked": dict(asked),
        "ended": len(bundles),
        "measured": _circumstances(bundles),
        "points": points,
        "findings": list(_findings(points)),
    }


def _circumstances(bundles: Sequence[Record]) -> dict[str, list[str]]:
    """Where, when and with which versions; the commit is that of the code that was trained."""
    nodes = [node for one in bundles for node in one["extra"]["nodes"]]
    versions = list(map(all_versions, bundles))
    days = sorted(one["run"]["start_time_utc"][:10] for one in bundles if one["run"]["start_time_utc"])
    commits = (f"{one['git_commit'][:9]}{' with changes' * bool(one['git_dirty'])}" for one in versions
               if one["git_commit"])  # fmt: skip
    return {
        "devices": sorted({name for node in nodes for name in _devices(node["hardware"] or {})}),
        "hosts": sorted({node["host"] for node in nodes}),
        "days": [days[0], days[-1]] if days else [],
        "launcher": sorted({one["launcher"] for one in versions if one["launcher"]}),
        "torch": sorted({one["torch"] for one in versions if one["torch"]}),
        "commit": sorted(set(commits)),
    }


def _devices(machine: Record) -> list[str]:
    """What the ranks of a node computed on."""
    gpus = [gpu["name"] for gpu in machine.get("gpu_devices", ())]
    cpu = machine.get("cpu_name")
    return gpus or ([f"CPU {cpu}"] if cpu else [])


def _points(kind: str, num_envs: int, sizes: Iterable[int], bundles: Sequence[Record]) -> list[Record]:
    points: list[Record] = []
    for ranks in sizes:
        per_rank = num_envs if kind == WEAK else num_envs // ranks
        mine = [one for one in bundles if _is(one, ranks, per_rank)]
        points.append({"scaling": kind, "world_size": ranks, "num_envs_per_rank": per_rank, **_point(mine)})
    first = next((point for point in points if point["fps"] is not None), None)
    return [{**point, "efficiency": _efficiency(point, first)} for point in points]


def _is(bundle: Record, ranks: int, per_rank: int) -> bool:
    extra = bundle["extra"]
    return (extra["world_size"], extra["num_envs_per_rank"]) == (ranks, per_rank)


def _point(bundles: Sequence[Record]) -> Record:
    good = [one for one in bundles if one["run"]["status"] == "completed" and one["runtime"]]
    failed = [one for one in bundles if one not in good]
    rates = [one["runtime"]["total_fps"]["mean"] for one in good]
    splits = [parts for one in good if (parts := parts_of(one))]
    names = splits[0] if splits else ()
    return {
        "num_nodes": bundles[0]["extra"]["num_nodes"] if bundles else None,
        "fps": {"median": median(rates), "min": min(rates), "max": max(rates)} if rates else None,
        "repetitions": rates,
        "iteration_s": median(one["runtime"]["iteration_time_s"]["mean"] for one in good) if good else None,
        "parts_s": {name: median(split[name] for split in splits) for name in names},
        "failed": [{"run_id": one["run"]["run_id"], "cause": one["extra"]["cause"],
                    "message": one["extra"]["message"]} for one in failed],
    }  # fmt: skip


def _efficiency(point: Record, first: Record | None) -> float | None:
    """Throughput against that of the fewest ranks, times as many: 1 where nothing is lost."""
    if first is None or point["fps"] is None:
        return None
    times = point["world_size"] / first["world_size"]
    return point["fps"]["median"] / (first["fps"]["median"] * times)


def _findings(points: Sequence[Record]) -> Iterator[str]:
    measured = [point for point in points if point["fps"] is not None]
    for kind in dict.fromkeys(point["scaling"] for point in measured):
        mine = [point for point in measured if point["scaling"] == kind]
        yield from (text for fewer, more in pairwise(mine) if (text := _slower(fewer, more)))
        yield from (text for point in mine if (text := _dominated(point)))


def _slower(fewer: Record, more: Record) -> str:
    """In words, where more of everything is slower beyond the spread of the repetitions."""
    if not more["fps"]["max"] < fewer["fps"]["min"]:
        return ""
    nodes = more["num_nodes"] != fewer["num_nodes"]
    unit, key = ("node", "num_nodes") if nodes else ("rank", "world_size")
    speeds = f"{more['fps']['median']:,.0f} against {fewer['fps']['median']:,.0f} frames/s"
    less = "1" if fewer[key] == 1 else f"{fewer[key]}"
    return f"{more[key]} {unit}s are slower than {less} for this task ({more['scaling']} scaling): {speeds}"


def _dominated(point: Record) -> str:
    parts = point["parts_s"]
    if point["world_size"] == 1 or max(parts, key=lambda name: parts[name], default="") != "synchronising":
        return ""
    share = parts["synchronising"] / sum(parts.values())
    ranks = f"{point['world_size']} ranks ({point['scaling']} scaling, {point['num_envs_per_rank']} environments each)"
    return f"synchronising dominates with {ranks}: {share:.0%} of an iteration, more than stepping or learning"
