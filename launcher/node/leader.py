"""Node 0: gathers the others, announces the start, collects the ends, judges."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import Any

from launcher.node import control, ports
from launcher.node.member import FAILURE_GRACE_S, TERMINATED, Event, Member, say
from launcher.node.place import Place
from launcher.node.ranks import Report, Start
from launcher.node.tracking import tracking
from launcher.node.verdict import Findings, judge
from launcher.plan.plan import Plan
from launcher.records import checkpoints
from launcher.records.files import append_json_line, read_json, write_json
from launcher.records.result import COMPLETED, STOPPED
from launcher.records.rundir import Attempt, RunDir

EXIT_CODES = {COMPLETED: 0, STOPPED: TERMINATED}
"""Of all agents, by the run's outcome; 1 for all others."""
_REPORT_S = 15.0
"""How long after the grace a node may take to report before it counts as lost."""
_IMPATIENT_S = 1.0
"""The same request to the same node again, this much later, comes from a person who will not wait."""


class Leader(Member):
    """The agent of node 0."""

    def __init__(self, plan: Plan, run: RunDir, place: Place) -> None:
        super().__init__(plan, run, place)
        self._findings = Findings()
        self._channels: dict[int, control.Channel] = {}
        self._requests: dict[tuple[int, str], float] = {}  # when each node was first asked to stop, in which way
        self._deadline: float | None = None  # for the reports, once the ranks are being stopped

    @property
    def _start_id(self) -> str:
        assert self.place.start_id is not None
        return self.place.start_id

    async def serve(self) -> int:
        """Run the attempt to its end; returns the exit code of all agents."""
        self._began = time.time()
        self._attempt: Attempt = self.run.claim_attempt()
        self.run.result.unlink(missing_ok=True)  # of an earlier attempt: the run has not ended after all
        self._note("attempt", hosts=self.place.hosts, job_id=self.place.job_id)
        async with self._server():
            await self._run_attempt()
            return await self._end()

    def _server(self) -> contextlib.AbstractAsyncContextManager[object]:
        if self.plan.resources.nodes == 1:
            return contextlib.nullcontext()
        return control.Server(self._start_id, self.run.secret.read_text(), self._joined)

    async def _run_attempt(self) -> None:
        if not await self._gather():
            return
        address = self.place.host if self.plan.resources.nodes > 1 else "127.0.0.1"
        with ports.reserved(f"{self._start_id}.torchrun") as port:
            start = Start(str(self._attempt.path), address, port, self._resume())
            self._note("start", **asdict(start))
            self._record_rendezvous(start)
            say(self.place, "environment of the ranks\n  " + "\n  ".join(self.plan.describe_environment()))
            self._broadcast("start", asdict(start))
            self.start_ranks(start)
            with tracking(self.plan, self.run, self._attempt, self.place.host):
                await self._until_all_ended()

    async def _gather(self) -> bool:
        """Wait for the other nodes; False when some did not come, or a request to stop came first."""
        deadline = asyncio.get_running_loop().time() + self.plan.budgets.rendezvous_s
        while missing := self._missing():
            self._say_who_is_missing(missing)
            event = await self.next_event(deadline)
            if event is None or event.kind == "request":
                self._findings.missing = missing
                self._findings.stopped_by = event.body["request"] if event else ""
                return False
            if event.kind == "gone":
                self._channels.pop(event.node, None)
        return True

    def _say_who_is_missing(self, hosts: list[str]) -> None:
        """To the person who starts the nodes one after the other."""
        if self.place.job_id is None:
            say(self.place, f"waits for {', '.join(hosts)}")

    def _missing(self) -> list[str]:
        return [host for node, host in enumerate(self.place.hosts) if node != 0 and node not in self._channels]

    async def _joined(self, node: int, channel: control.Channel) -> None:
        if node in self._channels:
            channel.send({"kind": "done", "body": {"code": 1, "why": f"node {node} has already been started"}})
            await channel.close()
            return
        self._channels[node] = channel
        self.inbox.put_nowait(Event("joined", node))
        await self.read_from(node, channel)

    async def _until_all_ended(self) -> None:
        while waiting := set(range(self.plan.resources.nodes)) - set(self._findings.reports) - self._lost_nodes():
            event = await self.next_event(self._deadline)
            if event is None:
                self._findings.lost += [self.place.hosts[node] for node in sorted(waiting)]
            else:
                self._react(event)

    def _lost_nodes(self) -> set[int]:
        return {node for node, host in enumerate(self.place.hosts) if host in self._findings.lost}

    def _react(self, event: Event) -> None:
        if event.kind == "report":
            self._take(Report.from_message(event.body))
        elif event.kind == "gone" and event.node not in self._findings.reports:
            self._note("lost", node=event.node, host=self.place.hosts[event.node])
            self._findings.lost.append(self.place.hosts[event.node])
            self._stop_all("failure", FAILURE_GRACE_S)
        elif event.kind == "request":
            self._request(event.node, event.body["request"])

    def _take(self, report: Report) -> None:
        self._note("ended", **report.to_message())
        self._findings.reports[report.node] = report
        if report.code:
            self._stop_all("failure", FAILURE_GRACE_S)

    def _request(self, node: int, request: str) -> None:
        """Slurm asks every node at once, and before a time limit in two ways: neither is impatience."""
        if not self._findings.stopped_by and not self._findings.failed:
            self._findings.stopped_by = request
        self._attempt.stop_file.touch()
        now = asyncio.get_running_loop().time()
        if now - self._requests.setdefault((node, request), now) > _IMPATIENT_S:
            self._tell_to_stop("impatience", 0.0)
        else:
            self._stop_all(request, self.plan.budgets.stop_grace_s)

    def _stop_all(self, why: str, grace_s: float) -> None:
        """Have every node stop its ranks, once."""
        if self._deadline is None:
            self._tell_to_stop(why, grace_s)

    def _tell_to_stop(self, why: str, grace_s: float) -> None:
        self._note("stop", why=why, grace_s=grace_s)
        self._deadline = asyncio.get_running_loop().time() + grace_s + _REPORT_S
        self._broadcast("stop", {"grace_s": grace_s})
        self.stop_ranks(grace_s)

    async def _end(self) -> int:
        seconds = time.time() - self._began
        training = read_json(self._attempt.training) or {}
        result = judge(self.plan, self._findings, training, self._attempt.number + 1, seconds)
        self._note("verdict", outcome=result.outcome, cause=result.cause)
        result.write(self.run.result)
        say(self.place, result.line())
        code = EXIT_CODES.get(result.outcome, 1)
        self._broadcast("done", {"code": code})
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        return code

    def _resume(self) -> str:
        """The newest checkpoint of this run, or the one the plan starts from."""
        own = checkpoints.newest_whole(self.run.checkpoints)
        return str(own.path) if own else self.plan.resume

    def _broadcast(self, kind: str, body: dict[str, Any]) -> None:
        for channel in self._channels.values():
            channel.send({"kind": kind, "body": body})

    def _record_rendezvous(self, start: Start) -> None:
        record = {**asdict(start), "job_id": self.place.job_id, "hosts": self.place.hosts, "time": time.time()}
        write_json(self._attempt.rendezvous, record)

    def _note(self, event: str, **facts: Any) -> None:
        append_json_line(self._attempt.events, {"time": time.time(), "event": event, **facts})
