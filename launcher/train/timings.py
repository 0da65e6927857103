"""What a rank measures of itself in a benchmark. In any other run it measures nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from launcher.records.files import write_json
from launcher.records.measured import PARTS, summary
from launcher.train.collectives import Collectives

if TYPE_CHECKING:
    from launcher.train.rank import Rank


class Timings:
    """The clock of one rank: the phases of its start, and then its iterations."""

    def __init__(self, bench: Mapping[str, Any] | None, gradients_here: bool = True) -> None:
        """To be made when the rank's own code begins.

        Args:
            bench: what the plan wants to have measured; None for an ordinary run.
            gradients_here: whether they are summed by torch, whose collectives can be timed.
        """
        self._bench = bench
        self._began = float(os.environ.get("LAUNCHER_RANK_BEGAN") or time.time())
        self._phases: dict[str, float] = {"python_imports": time.time() - self._began}
        self._last = time.monotonic()
        self._done = self._frames = 0
        self._series: dict[str, list[float]] = {name: [] for name in PARTS}
        self._collectives = Collectives() if gradients_here and bench is not None else None

    def mark(self, phase: str) -> None:
        """A phase of the start ends here, or a further part of it."""
        if self._bench is not None:
            self._phases[phase] = self._phases.get(phase, 0.0) + self._lap()

    def begin(self) -> None:
        """The loop begins: the last phase but the first step."""
        if self._bench is None:
            return
        self.mark("agent_creation")
        if self._collectives is not None:
            self._collectives.watch()

    def await_first_step(self, environments: Any) -> None:
        """The last phase is the one between the last mark and the end of the first step of these, which have `step`."""
        if self._bench is None:
            return
        step = environments.step

        def first(*arguments: Any, **named: Any) -> Any:
            if vars(environments).get("step") is first:
                del environments.step  # of the instance: from now on it is the method again
            stepped = step(*arguments, **named)
            self._phases.setdefault("first_step", time.monotonic() - self._last)  # the first iteration goes on
            return stepped

        environments.step = first

    def iteration(self, frames: int, collect_s: float, learn_s: float) -> None:
        """An iteration of so many frames of this rank's is done."""
        if self._bench is None:
            return
        sync_s = None if self._collectives is None else self._collectives.take()
        self._done += 1
        seconds = self._lap()
        if self._done <= self._bench["warmup"]:
            return
        self._frames = frames
        for name, value in zip(PARTS, (seconds, collect_s, learn_s, sync_s), strict=True):
            if value is not None:
                self._series[name].append(value)

    def steps(self, frames: int, seconds: Sequence[float]) -> None:
        """Steps alone were timed elsewhere, one by one, each of so many frames of this rank's."""
        self._frames = frames
        for name in ("iteration_s", "collect_s"):
            self._series[name] += seconds

    def between(self) -> None:
        """Collectives until here are the launcher's own, and not the iteration's that follows."""
        if self._collectives is not None:
            self._collectives.take()

    def gather(self, rank: Rank) -> None:
        """Bring together what all ranks have measured, and have rank 0 write it down. Collective."""
        if self._bench is None:
            return
        mine = self._own(rank)
        everyone: list[Any] = [mine] * rank.world_size
        if rank.world_size > 1:
            dist.all_gather_object(everyone, mine)
        if rank.rank == 0 and (file := os.environ.get("LAUNCHER_STOP_FILE")):
            write_json(Path(file).with_name("timings.json"), {"ranks": everyone})

    def _own(self, rank: Rank) -> dict[str, Any]:
        measured = summary(self._frames, self._series) if self._series["iteration_s"] else None
        own = {"rank": rank.rank, "host": socket.gethostname(), "began": self._began, "phases": self._phases}
        return {**own, "measured": measured, "machine": machine(rank.device) if rank.local_rank == 0 else None}

    def _lap(self) -> float:
        before, self._last = self._last, time.monotonic()
        return self._last - before


def machine(device: torch.device) -> dict[str, Any]:
    """This host, in the form of Isaac Lab's Hardware; GPUs only where the ranks compute on them."""
    gpus = [torch.cuda.get_device_properties(index) for index in _gpus(device)]
    return {
        "hostname": socket.gethostname(),
        "gpu_devices": [
            {"name": gpu.name, "mem_gb": round(gpu.total_memory / 2**30, 2), "compute_cap": f"{gpu.major}.{gpu.minor}"}
            for gpu in gpus
        ],
        "cpu_name": _cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "ram_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 2),
    }


def _gpus(device: torch.device) -> range:
    return range(torch.cuda.device_count() if device.type == "cuda" else 0)


def _cpu_name() -> str | None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Processor")))
    return next(names, None)
