"""Several runs on one node, side by side: each in a slot of its own, with its share of the GPUs and CPUs.

The same for a Slurm allocation that holds several one-GPU runs, and for a sweep on this machine, where there are more
runs than slots. Every run has its own agent, as if it were alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import SchedulerError
from launcher.node.member import REQUEUE_ME, TERMINATED
from launcher.node.place import PACKED_VARIABLE
from launcher.records.files import write_json
from launcher.records.result import COMPLETED, read_result
from launcher.records.rundir import RunDir
from launcher.slurm import commands
from launcher.slurm.allocation import Allocation

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@dataclass(frozen=True)
class Slot:
    """What one run at a time may use."""

    gpus: tuple[str, ...]
    """Entries of CUDA_VISIBLE_DEVICES; empty where the node has none."""
    cpus: frozenset[int]


def share_out(count: int, gpus: Sequence[str], cpus: Sequence[int]) -> list[Slot]:
    """Equal slots; what does not divide is left over, and CPUs are shared where they are too few."""
    per_gpu, per_cpu = len(gpus) // count, len(cpus) // count
    return [
        Slot(
            tuple(gpus[index * per_gpu : (index + 1) * per_gpu]),
            frozenset(cpus[index * per_cpu : (index + 1) * per_cpu] if per_cpu else cpus),
        )
        for index in range(count)
    ]


class Pack:
    """A queue of runs over the slots of a node."""

    def __init__(self, runs: Sequence[Path], slots: Sequence[Slot], job: Allocation | None) -> None:
        self._restarts = 0 if job is None else job.restarts
        self._waiting = [run for run in map(RunDir, runs) if not self._over(run)]
        self._slots, self._job = slots, job
        self._agents: set[asyncio.subprocess.Process] = set()
        self._codes: list[int] = []
        self._stopping = False

    async def serve(self) -> int:
        """Run all of them; returns 0, or 1 when one failed, or 143 when they were stopped."""
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            loop.add_signal_handler(number, self._stop, number)
        await asyncio.gather(*map(self._serve_slot, self._slots))
        if REQUEUE_ME in self._codes and self._job is not None:
            await asyncio.to_thread(requeue, self._job)
        if self._stopping:
            return TERMINATED
        return 1 if any(self._codes) else 0

    async def _serve_slot(self, slot: Slot) -> None:
        while self._waiting and not self._stopping:
            self._codes.append(await self._run(self._waiting.pop(0), slot))

    async def _run(self, run: RunDir, slot: Slot) -> int:
        with open(run.agent_log, "ab") as log:
            agent = await asyncio.create_subprocess_exec(
                sys.executable, "-u", "-m", "launcher.node", str(run.path), env=_environment(slot),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(agent.pid, slot.cpus)
        if self._job is None:
            record = {"scheduler": "local", "pid": agent.pid, "host": os.uname().nodename, "time": time.time()}
            write_json(run.submission, record)
        self._agents.add(agent)
        try:
            return await agent.wait()
        finally:
            self._agents.discard(agent)

    def _over(self, run: RunDir) -> bool:
        """True for a run that need not be repeated: one that has ended, or, when a person starts it, completed."""
        result = read_result(run.result)
        return result is not None and (self._restarts > 0 or result.outcome == COMPLETED)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping = True
        for agent in self._agents:
            with contextlib.suppress(ProcessLookupError):
                agent.send_signal(number)


def requeue(job: Allocation) -> None:
    """The runs that are to go on do so in the next start of the job, and those that have ended are left out."""
    try:
        if not commands.fate(job.job_id).requeued_since(job.restarts):
            commands.requeue(job.job_id)
    except SchedulerError as error:
        print(f"[launcher] the job could not be requeued: {error}; go on with: python -m launcher resume", flush=True)


def _environment(slot: Slot) -> dict[str, str]:
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(slot.gpus)} if slot.gpus else {}
    return {**os.environ, **gpus, PACKED_VARIABLE: "1", "LAUNCHER_FOREGROUND": str(os.getpid())}
