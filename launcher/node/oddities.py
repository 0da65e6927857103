"""What is wrong with a training that fails nowhere: pure functions over what the nodes and the ranks say of themselves.

Each threshold has its reason beside it. What is found is a warning: the ranks go on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.records.preflight import WARNING, Check, Finding

WINDOW = 12
"""Samples that a judgement rests on, a minute by default: an evaluation or a checkpoint seldom takes longer, and an
iteration of a training has several phases, in some of which a GPU has nothing to do."""
IDLE, BUSY = 0.02, 0.2
"""Use of a GPU. NVML's own noise stays below the first, in each sample of a window; by the second it has work."""
STARVED, CPU_LIMIT = 0.3, 0.9
"""The mean use below which most of a GPU's time is lost, and that of the CPUs above which there are none left."""
SLOWER = 1.5
"""How many times as long as the others a straggler works. NVIDIA's resiliency extension draws its line at a relative
speed of 0.7, which is 1.4 times; less is common where ranks simulate different episodes."""
LOSS = 0.1
"""The share of an iteration that the others lose to a straggler, below which it does not matter."""
IN_A_ROW = 3
"""Comparisons of the ranks in which the same one must be the straggler."""
ENOUGH_DATA = 1024
"""Bytes: fewer can be equal by chance, as the observations of one environment with few states."""
HALF_FULL = 0.5
"""Below this share of the limit there is time to see whether the growth ends, as that of a replay buffer does."""
FEWEST_POINTS = 20
"""Of the memory's course, which are half a minute apart by default: ten minutes."""
STRAIGHT = 0.95
"""Correlation with time of a growth that deserves to be extended into the future."""
HORIZON_S = 24 * 3600.0
"""How far it is extended where the job has no nearer end."""

GPU_IDLE = Check(
    "gpu-idle", "GPUs that do nothing while others work, or while the training goes on",
    "does each rank use the GPU of its LOCAL_RANK, and has each joined the process group?", (WARNING,),
)  # fmt: skip
SHARED_GPU = Check(
    "shared-gpu", "ranks that compute on the same GPU though there is one for each",
    "have each rank call torch.cuda.set_device(LOCAL_RANK) before it uses CUDA", (WARNING,),
)  # fmt: skip
ALONE = Check(
    "alone", "ranks without a connection to anybody: each trains by itself",
    "call torch.distributed.init_process_group(), or use a library that does", (WARNING,),
)  # fmt: skip
SAME_DATA = Check(
    "same-data", "ranks that collect exactly the same data",
    "seed environments and data from the global RANK, and use a DistributedSampler", (WARNING,),
)  # fmt: skip
STRAGGLER = Check(
    "straggler", "a rank that works much longer than the others, which wait for it",
    "look at its host: clocks, other jobs, disks; leave it out with cluster.exclude", (WARNING,),
)  # fmt: skip
GPU_STARVED = Check(
    "gpu-starved", "GPUs that wait for the simulator or the data while all CPUs are busy",
    "ask for more CPUs (cluster.cpus_per_gpu), or make the environments or the loading cheaper", (WARNING,),
)  # fmt: skip
MEMORY_CREEP = Check(
    "memory-creep", "memory that grows steadily and will reach the limit before the job ends",
    "look for what is kept for ever, or ask for more (cluster.mem_per_gpu)", (WARNING,),
)  # fmt: skip
CHECKS = (GPU_IDLE, SHARED_GPU, ALONE, SAME_DATA, STRAGGLER, GPU_STARVED, MEMORY_CREEP)


@dataclass(frozen=True)
class Gpu:
    """One GPU in a sample."""

    index: int
    use: float
    """0 to 1."""
    ranks: tuple[int, ...] = ()
    """Those that have memory there."""


@dataclass(frozen=True)
class Load:
    """What of a sample is judged."""

    cpu: float | None
    """Busy share of the CPUs that the ranks may use."""
    gpus: tuple[Gpu, ...] = ()
    """Of this run; those that tell nothing of their use, as slices do not, are left out."""
    ranks: tuple[tuple[int, bool], ...] = ()
    """Each rank of the node, and whether it is connected to anything."""

    @staticmethod
    def of(sample: Mapping[str, Any]) -> Load:
        """Read a line of the samples' file."""
        gpus = (gpu for gpu in sample.get("gpus") or () if gpu.get("utilisation") is not None)
        return Load(
            sample.get("cpu"),
            tuple(Gpu(gpu["index"], gpu["utilisation"], tuple(gpu.get("ranks", ()))) for gpu in gpus),
            tuple((one["rank"], one["connected"]) for one in sample.get("ranks", ())),
        )


Windows = Mapping[str, Sequence[Load]]
"""The newest samples of each node, by host, in the order of their ranks."""


def idle_gpus(windows: Windows, progress: bool) -> Iterator[Finding]:
    """`progress`: iterations are being told, so that it cannot be only a long preparation."""
    uses = dict(_uses(windows))
    idle = [place for place, use in uses.items() if max(use) <= IDLE]
    busy = [place for place, use in uses.items() if statistics.mean(use) >= BUSY]
    if idle and (busy or (progress and len(idle) == len(uses))):
        names = ", ".join(f"GPU {index} on {host}" for host, index in idle[:4])
        more = f" and {len(idle) - 4} more" if len(idle) > 4 else ""
        yield GPU_IDLE.finding(idle[0][0], f"{len(busy)} of {len(uses)} GPUs work, nothing runs on {names}{more}")


def _uses(windows: Windows) -> Iterator[tuple[tuple[str, int], list[float]]]:
    """The use of each GPU over a whole window."""
    for host, loads in windows.items():
        if len(loads) >= WINDOW:
            for gpu in loads[-1].gpus:
                use = [one.use for load in loads for one in load.gpus if one.index == gpu.index]
                if len(use) == len(loads):
                    yield (host, gpu.index), use


def starved_gpus(windows: Windows) -> Iterator[Finding]:
    """Idle ones are left to :func:`idle_gpus`."""
    for host, loads in windows.items():
        cpu = [load.cpu for load in loads if load.cpu is not None]
        use = [value for _, values in _uses({host: loads}) for value in values]
        if not use or not cpu or max(use) <= IDLE:
            continue
        if statistics.mean(use) < STARVED and statistics.mean(cpu) >= CPU_LIMIT:
            text = f"its GPUs work {statistics.mean(use):.0%} of the time and its CPUs {statistics.mean(cpu):.0%}"
            yield GPU_STARVED.finding(host, text)


def shared_gpus(windows: Windows, ranks_per_node: int) -> Iterator[Finding]:
    """Seen twice in a row; a rank that has some memory on a second GPU besides is none of these."""
    for host, loads in windows.items():
        if len(loads) >= 2 and len(loads[-1].gpus) >= ranks_per_node:
            for index, ranks in _crowds(loads[-1]).items():
                if _crowds(loads[-2]).get(index) == ranks:
                    who = " and ".join(map(str, ranks))
                    yield SHARED_GPU.finding(host, f"ranks {who} compute on the same GPU, number {index}")


def _crowds(load: Load) -> dict[int, tuple[int, ...]]:
    """By GPU: the ranks that have no other, where there are several."""
    places: dict[int, list[int]] = {}
    for gpu in load.gpus:
        for rank in gpu.ranks:
            places.setdefault(rank, []).append(gpu.index)
    only = {rank: indices[0] for rank, indices in places.items() if len(indices) == 1}
    crowds = {index: tuple(sorted(rank for rank in only if only[rank] == index)) for index in only.values()}
    return {index: ranks for index, ranks in crowds.items() if len(ranks) > 1}


def alone(windows: Windows, world_size: int) -> Iterator[Finding]:
    """Whoever is in a process group has a connection at least to its store. Rank 0 may have one for other reasons.

    Once is a moment: a short training may have left its group before it is first looked at.
    """
    for back in (1, 2):
        ranks = [rank for loads in windows.values() for rank in (loads[-back].ranks if len(loads) >= back else ())]
        if len(ranks) != world_size or any(connected for rank, connected in ranks if rank != 0):
            return
    if world_size > 1:
        text = f"the {world_size} ranks do not train together, none of them has joined a process group"
        yield ALONE.finding(next(iter(windows)), text)


@dataclass(frozen=True)
class Comparison:
    """What the ranks told each other at one moment; by rank."""

    iteration: int
    seconds: float
    """That an iteration has taken lately, as rank 0 saw it."""
    worked: Sequence[float]
    """Those of them that a rank worked by itself, without collectives; 0 where it does not tell."""
    data: Sequence[tuple[int, int]]
    """How many bytes of its early data a rank has looked at, and their digest."""

    @staticmethod
    def of(record: Mapping[str, Any]) -> Comparison:
        """Read what rank 0 wrote."""
        data = [(int(size), int(digest)) for size, digest in record["data"]]
        return Comparison(record["iteration"], record["seconds"], record["worked"], data)


def same_data(now: Comparison, hosts: Sequence[str]) -> Iterator[Finding]:
    """`hosts`: of each rank."""
    seen: dict[tuple[int, int], list[int]] = {}
    for rank, data in enumerate(now.data):
        seen.setdefault(data, []).append(rank)
    for (size, _), ranks in seen.items():
        if size >= ENOUGH_DATA and len(ranks) > 1:
            who = "all ranks" if len(ranks) == len(now.data) else f"ranks {', '.join(map(str, ranks[:8]))}"
            yield SAME_DATA.finding(hosts[ranks[0]], f"{who} collect exactly the same data")
            return


def straggler(history: Sequence[Comparison], hosts: Sequence[str]) -> Iterator[Finding]:
    """`hosts`: of each rank."""
    slow = [_slow(one) for one in history[-IN_A_ROW:]]
    if len(slow) == IN_A_ROW and slow[0] is not None and len(set(slow)) == 1:
        rank, now = slow[0], history[-1]
        ratio = now.worked[rank] / _of_others(now.worked, rank)
        text = f"rank {rank} works {ratio:.1f} times as long as the others before it can meet them"
        yield STRAGGLER.finding(hosts[rank], text)


def _slow(now: Comparison) -> int | None:
    """The rank that the others lose time to."""
    if len(now.worked) < 2 or min(now.worked) <= 0:
        return None
    rank = max(range(len(now.worked)), key=now.worked.__getitem__)
    most, usual = now.worked[rank], _of_others(now.worked, rank)
    return rank if most >= SLOWER * usual and most - usual >= LOSS * now.seconds else None


def _of_others(worked: Sequence[float], rank: int) -> float:
    return statistics.median([*worked[:rank], *worked[rank + 1 :]])


def memory_creep(host: str, points: Sequence[tuple[float, float]], limit: float, left_s: float) -> Iterator[Finding]:
    """`points`: time in seconds and memory in use, of the same unit as `limit`; `left_s`: until the job must end."""
    seconds = full_in(points, limit)
    if seconds is not None and seconds <= min(left_s, HORIZON_S):
        share = points[-1][1] / limit
        text = f"memory is {share:.0%} full, grows steadily, and would be full in {_duration(seconds)}"
        yield MEMORY_CREEP.finding(host, text)


def full_in(points: Sequence[tuple[float, float]], limit: float) -> float | None:
    """Seconds until memory that grows steadily reaches its limit; None where it does not, or is far from it."""
    if len(points) < FEWEST_POINTS or points[-1][1] < HALF_FULL * limit:
        return None
    middle = len(points) // 2
    first, second = _slope(points[:middle]), _slope(points[middle:])
    if first <= 0 or second < first / 2:  # it does not grow, or it levels off
        return None
    times, uses = zip(*points)
    if statistics.correlation(times, uses) < STRAIGHT:
        return None
    return max(0.0, (limit - points[-1][1]) / _slope(points))


def _slope(points: Sequence[tuple[float, float]]) -> float:
    times, uses = zip(*points)
    return statistics.linear_regression(times, uses).slope if len(set(times)) > 1 else 0.0


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{max(1, round(seconds / 60))} minutes"
