"""What the agent of every node does: take events in, run its own ranks, stop them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.node import control
from launcher.node.aside import aside
from launcher.node.hang.watch import period_s
from launcher.node.place import Place
from launcher.node.preflight import full
from launcher.node.preflight.run import preflight
from launcher.node.preflight.wanted import wanted
from launcher.node.ranks import Ranks, Report, Start
from launcher.node.samples import Sample, Watched, sampling
from launcher.node.standby import Standby
from launcher.node.watching import seen_of
from launcher.plan.plan import Plan
from launcher.records.preflight import NodeReport
from launcher.records.rundir import Attempt, RunDir

TERMINATED = 143
"""Exit code of an agent that was asked to stop: 128 + SIGTERM, as a shell has it."""
REQUEUE_ME = 75
"""Exit code of an agent whose run goes on when the job that it shares does: TEMPFAIL of sysexits.h."""
_NODE_0_S = 180.0
"""How long node 0 may take to end an attempt whose first all-reduce went wrong: the other nodes may hang in theirs."""
_REQUESTS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGUSR2: "time_limit"}


@dataclass(frozen=True)
class Event:
    """Something that node 0, or another node, has to react to."""

    kind: str
    """``joined``, ``start``, ``preflight``, ``sample``, ``pulse``, ``look``, ``facts``, ``report``, ``stop``,
    ``request``, ``done`` or ``gone``."""

    node: int = 0
    body: dict[str, Any] = field(default_factory=dict)


class Member:
    """What every agent does: receive events, run its own ranks, stop them."""

    def __init__(self, plan: Plan, run: RunDir, place: Place) -> None:
        self.plan, self.run, self.place = plan, run, place
        self.inbox: asyncio.Queue[Event] = asyncio.Queue()
        self.ranks: Ranks | None = None
        self._standby = Standby()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked = False

    def listen_to_signals(self) -> None:
        """Slurm's and the terminal's wishes become events."""
        loop = asyncio.get_running_loop()
        for number, request in _REQUESTS.items():
            event = Event("request", self.place.node, {"request": request})
            loop.add_signal_handler(number, self.inbox.put_nowait, event)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run beside the events until it ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start_ranks(self, start: Start) -> None:
        """Start them, and look at the node meanwhile: torchrun takes longer. A look that needs torch comes first."""
        self.ranks = Ranks(self.plan, self.place.node, self.place.host, start, self._standby)
        self._stopped = asyncio.Event()
        looks = self.plan.budgets.preflight_s > 0 and not self._looked
        self._looked = True  # after an attempt that was killed the driver may take a moment to free its memory
        if looks and self.plan.budgets.probe_s:
            self.background(self._run_after_all_reduce(self.ranks, start))
            return
        self.background(self._run_ranks(self.ranks, Attempt(Path(start.attempt))))
        if looks:
            self.background(self._look_at_node())

    async def _look_at_node(self) -> None:
        self._tell(await self._look())

    async def _look(self) -> NodeReport:
        return await preflight(wanted(self.plan, self.place), self.plan.budgets.preflight_s)

    def _tell(self, report: NodeReport) -> None:
        self.inbox.put_nowait(Event("preflight", self.place.node, report.to_message()))

    async def _run_after_all_reduce(self, ranks: Ranks, start: Start) -> None:
        """Start the ranks when a first all-reduce has shown that they can talk to each other, and not before."""
        looking = asyncio.create_task(self._look_with_torch(start))
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait([looking, stopped], return_when=asyncio.FIRST_COMPLETED)
        if looking.done() and not stopped.done() and looking.result():
            stopped.cancel()
            await self._run_ranks(ranks, Attempt(Path(start.attempt)))
            return
        looking.cancel()
        await asyncio.wait([looking, stopped], timeout=_NODE_0_S, return_when=asyncio.ALL_COMPLETED)
        why = "a first all-reduce went wrong: the ranks were not started"
        report = Report(self.place.node, 1, message=why, host=self.place.host)
        self.inbox.put_nowait(Event("report", self.place.node, report.to_message()))

    async def _look_with_torch(self, start: Start) -> bool:
        """Tell node 0 what is wrong here, the all-reduce included; returns whether it went well."""
        report, began = await self._look(), time.monotonic()
        if report.errors:
            self._tell(report)
            return False
        place, nodes = start.nodes.index(self.place.node), len(start.nodes)
        world = full.world_of(self.plan, place, nodes, start.master_addr, start.probe_port)
        try:
            seen = await full.all_reduce_in_run(self.plan, self.place, Attempt(Path(start.attempt)), world)
        except LauncherError:  # the ranks themselves will say it
            self._tell(report)
            return True
        self._tell(full.with_ranks(report, seen, began))
        return full.all_well(seen)

    async def _run_ranks(self, ranks: Ranks, attempt: Attempt) -> None:
        pulse = asyncio.create_task(self._feel_pulse(ranks))
        with self._watching(ranks, attempt):
            report = await ranks.run()
        pulse.cancel()
        self.inbox.put_nowait(Event("report", self.place.node, report.to_message()))

    def _watching(self, ranks: Ranks, attempt: Attempt) -> contextlib.AbstractContextManager[object]:
        """Samples of this node while its ranks run, for the records and for node 0."""
        period_s = self.plan.budgets.sample_s
        if not period_s:
            return contextlib.nullcontext()
        loop = asyncio.get_running_loop()

        def tell(sample: Sample) -> None:
            told = {**sample, "training": seen_of(self.run, attempt)} if self.place.leader else sample
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self.inbox.put_nowait, Event("sample", self.place.node, told))

        gpus = self.plan.resources.gpus_per_node > 0 and self.plan.training["device"] != "cpu"
        visible = wanted(self.plan, self.place).environment.get("CUDA_VISIBLE_DEVICES")
        file, watched = attempt.samples(self.place.node), Watched(ranks.pids, visible, tell)
        return sampling(file, self.run.path, gpus=gpus, period_s=period_s, watched=watched)

    async def _feel_pulse(self, ranks: Ranks) -> None:
        """Tell in every period what moved."""
        patience = self.plan.budgets.hang
        while patience is not None:
            await asyncio.sleep(period_s(patience))
            if ranks.seen is not None:
                pulse = await aside(ranks.seen.look)
                self.inbox.put_nowait(Event("pulse", self.place.node, asdict(pulse)))

    async def _look_into_ranks(self, question: int) -> None:
        """Find out what each rank is at, while it is still alive."""
        if self.ranks is not None and self.ranks.seen is not None:
            facts = await aside(self.ranks.seen.collect)
            self.inbox.put_nowait(Event("facts", self.place.node, {"question": question, **facts.to_message()}))

    def look_into_ranks(self, question: int) -> None:
        self.background(self._look_into_ranks(question))

    def stop_ranks(self, grace_s: float) -> None:
        if self.ranks is not None:
            self._stopped.set()
            self.background(self.ranks.stop(grace_s))

    async def next_event(self, deadline: float | None) -> Event | None:
        """The next event, or None when the deadline (of the loop's clock) has passed."""
        left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            return await asyncio.wait_for(self.inbox.get(), left)
        except asyncio.TimeoutError:
            return None

    async def read_from(self, node: int, channel: control.Channel) -> None:
        """Turn what a node says into events, until it is gone."""
        while (message := await channel.receive()) is not None:
            self.inbox.put_nowait(Event(message["kind"], node, message.get("body", {})))
        self.inbox.put_nowait(Event("gone", node, {"silent": channel.silent}))


def say(place: Place, text: str) -> None:
    """One line to whoever reads this node's output."""
    with contextlib.suppress(OSError):  # a terminal that was closed is no reason to end a training
        print(f"[launcher] node {place.node} ({place.host}, pid {os.getpid()}): {text}", flush=True)
