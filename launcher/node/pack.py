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
from launcher.records.files import create_json, read_json, write_json
from launcher.records.result import COMPLETED, STOPPED, Result, read_result
from launcher.records.rundir import RunDir
from launcher.records.submission import record_job
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


@dataclass(frozen=True)
class Shared:
    """The allocation of a job that several runs share."""

    job: Allocation
    batch: Path
    """Its file in the records of the sweep."""
    runs: Sequence[RunDir]
    """On all of its nodes."""

    @property
    def goes_on(self) -> bool:
        """True in a later start: Slurm has requeued the job, or it is the copy that :meth:`start_again` submitted."""
        copies = (read_json(path) or {} for path in self.batch.parent.glob("again-*.json"))
        return self.job.restarts > 0 or any(copy.get("job_id") == self.job.job_id for copy in copies)

    def start_again(self) -> None:
        """Put the job back into the queue, or a copy of it where its site forbids that; those that have ended stay so.

        Every node of the job may ask for it.
        """
        try:
            fate = commands.fate(self.job.job_id)
            if fate.requeued_since(self.job.restarts):
                return
            if fate.requeue:
                commands.requeue(self.job.job_id)
            else:
                self._submit_copy()
        except SchedulerError as error:
            hint = "go on with: python -m launcher resume"
            print(f"[launcher] the job does not start again: {error}; {hint}", flush=True)

    def _submit_copy(self) -> None:
        """By the node that is first."""
        record = self.batch.with_name(f"again-{self.job.job_id}.json")
        if create_json(record, {}):
            again = commands.submit_again(self.job.job_id)
            write_json(record, {"job_id": again})
            for run in self.runs:
                if not run.result.exists():
                    record_job(run.slurm, run.submission, again)


class Pack:
    """A queue of runs over the slots of a node."""

    def __init__(self, runs: Sequence[Path], slots: Sequence[Slot], shared: Shared | None) -> None:
        self._goes_on = shared is not None and shared.goes_on
        self._waiting = [run for run in map(RunDir, runs) if not self._over(run)]
        self._slots, self._shared = slots, shared
        self._agents: set[asyncio.subprocess.Process] = set()
        self._codes: list[int] = []
        self._stopping = False

    async def serve(self) -> int:
        """Run all of them; returns 0, or 1 when one failed, or 143 when they were stopped."""
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            loop.add_signal_handler(number, self._stop, number)
        await asyncio.gather(*map(self._serve_slot, self._slots))
        if REQUEUE_ME in self._codes and self._shared is not None:
            await asyncio.to_thread(self._shared.start_again)
        if self._stopping:
            return TERMINATED
        return 1 if any(self._codes) else 0

    async def _serve_slot(self, slot: Slot) -> None:
        while self._waiting and not self._stopping:
            run = self._waiting.pop(0)
            if run.cancelled:
                _leave(run)
            else:
                self._codes.append(await self._run(run, slot))

    async def _run(self, run: RunDir, slot: Slot) -> int:
        with open(run.agent_log, "ab") as log:
            agent = await asyncio.create_subprocess_exec(
                sys.executable, "-u", "-m", "launcher.node", str(run.path), env=_environment(slot),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(agent.pid, slot.cpus)
        if self._shared is None:
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
        return result is not None and (self._goes_on or result.outcome == COMPLETED)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping = True
        for agent in self._agents:
            with contextlib.suppress(ProcessLookupError):
                agent.send_signal(number)


def _leave(run: RunDir) -> None:
    """Write down that a run was cancelled before its turn came."""
    Result(STOPPED, "cancelled", "while it waited for its turn", attempts=len(run.attempts())).write(run.result)
    run.cancel.unlink(missing_ok=True)


def _environment(slot: Slot) -> dict[str, str]:
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(slot.gpus)} if slot.gpus else {}
    return {**os.environ, **gpus, PACKED_VARIABLE: "1", "LAUNCHER_FOREGROUND": str(os.getpid())}
