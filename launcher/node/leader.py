"""Node 0: gathers the others, starts attempts, collects their ends, judges, and starts again where that is due."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from pathlib import Path

from launcher.node import control, ports, retry
from launcher.node.conclusion import conclude, cut_off, insist, secure, training_of
from launcher.node.inquiry import OF_SLURM, Inquiry
from launcher.node.job import Job
from launcher.node.journal import Journal
from launcher.node.lookout import Lookout
from launcher.node.member import REQUEUE_ME, TERMINATED, Event, Member, say
from launcher.node.place import Place
from launcher.node.ranks import Report, Start
from launcher.node.retry import Next
from launcher.node.roster import Roster
from launcher.node.silent import settle_earlier
from launcher.node.tracking import tracking
from launcher.node.verdict import Findings, judge
from launcher.plan.plan import Plan
from launcher.records import checkpoints
from launcher.records.checkpoints import Checkpoint
from launcher.records.result import COMPLETED, STOPPED, Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.slurm.fate import Stop

EXIT_CODES = {COMPLETED: 0, STOPPED: TERMINATED}
"""Of all agents, by the run's outcome; 1 for all others."""
_REPORT_S = 15.0
"""How long after the grace a node may take to report before it counts as lost."""
_IMPATIENT_S = 1.0
"""The same request to the same node again, this much later, comes from a person who will not wait."""
_STRAGGLER_S = 10.0
"""How long to wait for a node that could be done without."""
_LOOK_S = 2.0
"""How often to look whether another attempt has taken over, or a person has cancelled the run."""
_LAST_S = 1.5
"""Before Slurm's SIGKILL: for a file to be written."""


class Superseded(Exception):
    """A newer attempt has the run: this one is over, and writes nothing any more."""


class Leader(Member):
    """The agent of node 0."""

    def __init__(self, plan: Plan, run: RunDir, place: Place) -> None:
        super().__init__(plan, run, place)
        self._roster = Roster(place.hosts)
        self._started_before = False

    @property
    def _start_id(self) -> str:
        assert self.place.start_id is not None
        return self.place.start_id

    async def serve(self) -> int:
        """Run attempts until the run has ended, or goes on in another start; returns the exit code of all agents."""
        ended = read_result(self.run.result)
        if ended is not None and self.place.restarts:
            say(self.place, f"the run has already ended ({ended.line()}): nothing is left to do")
            return EXIT_CODES.get(ended.outcome, 1)
        self._job = Job.of(self.run, self.place)
        self._loop = asyncio.get_running_loop()
        try:
            async with self._server():
                return await self._release(await self._serve_attempts())
        except Superseded:
            say(self.place, "another attempt has taken over: this one ends, and writes nothing any more")
            return await self._release(1)

    def _server(self) -> contextlib.AbstractAsyncContextManager[object]:
        if len(self.place.hosts) == 1:
            return contextlib.nullcontext()
        return control.Server(self._start_id, self.run.secret.read_text(), self._joined)

    async def _serve_attempts(self) -> int:
        while True:
            await asyncio.to_thread(insist, self._begin, self.plan.budgets.rendezvous_s)
            if await asyncio.to_thread(settle_earlier, self.plan, self.run, self._attempt, self.place):
                return 1
            fenced = asyncio.create_task(self._run_attempt())
            await self._unless_superseded(fenced)
            result, then = await self._conclude()
            if then.what != retry.AGAIN:
                return self._exit_code(result, then)

    def _begin(self) -> None:
        """A new attempt, of which nothing is known yet."""
        self._began = time.time()
        self._findings = Findings()
        self._nodes: tuple[int, ...] = ()  # that train, in the order of their ranks
        self._requests: dict[tuple[int, str], float] = {}  # when each node was first asked to stop, in which way
        self._deadline: float | None = None  # for the reports, once the ranks are being stopped
        self._killing = False  # they are being stopped without a grace
        self._attempt: Attempt = self.run.claim_attempt()
        self._journal = Journal(self._attempt)
        self._inquiry = Inquiry(self._job, self.place.hosts, self._answered)
        self.run.result.unlink(missing_ok=True)  # the run has not ended after all
        self._journal.note("attempt", hosts=self.place.hosts, job_id=self.place.job_id, restarts=self.place.restarts)

    async def _unless_superseded(self, work: asyncio.Task[None]) -> None:
        """Wait for the attempt's end.

        Raises:
            Superseded: another one has begun, on other nodes: this one's job went on after Slurm had given it up.
        """
        while not work.done():
            await asyncio.wait([work], timeout=_LOOK_S)
            if self._attempt.superseded:
                self._roster.broadcast("stop", {"grace_s": 0.0})
                if self.ranks is not None:
                    await self.ranks.stop(0.0)
                work.cancel()
                raise Superseded
            self._look_for_cancel()
        work.result()

    def _look_for_cancel(self) -> None:
        """Who cancels one run of several in a job sends no signal; who asked the ranks to save may not wait for it."""
        wish = self.run.cancelled
        if wish and not self._findings.stopped_by:
            self.inbox.put_nowait(Event("request", self.place.node, {"request": "cancelled"}))
        elif wish == "now" and self._deadline is not None and not self._killing:
            self._tell_to_stop("impatience", 0.0)

    async def _run_attempt(self) -> None:
        if not await self._gather():
            return
        address = self.place.host if len(self._nodes) > 1 else "127.0.0.1"
        key = f"{self._start_id}.{self._attempt.number}"
        with ports.reserved(f"{key}.torchrun") as port, ports.reserved(f"{key}.probe") as probe_port:
            checkpoint = self._resume()
            path = str(checkpoint.path) if checkpoint else ""
            start = Start(str(self._attempt.path), address, port, path, self._nodes, probe_port)
            self._journal.note("start", **asdict(start))
            self._journal.rendezvous(self.place, start, checkpoint.iteration if checkpoint else 0)
            if not self._started_before:
                say(self.place, "environment of the ranks\n  " + "\n  ".join(self.plan.describe_environment()))
            self._started_before = True
            self._roster.broadcast("start", asdict(start))
            self._lookout = Lookout(
                self.plan, self.place, self._nodes, self._roster, self._findings, self._journal,
                self.look_into_ranks, self._stop_all,
            )  # fmt: skip
            self.start_ranks(start)
            with tracking(self.plan, self.run, self._attempt, self.place.host), self._lookout:
                await self._until_all_ended()

    async def _gather(self) -> bool:
        """Wait for the other nodes, for those that could be done without not for long.

        Returns False when too few came, or a request to stop came first.
        """
        now = asyncio.get_running_loop().time
        deadline, patience = now() + self.plan.budgets.rendezvous_s, now() + self._straggler_s()
        while missing := self._roster.missing():
            self._say_who_is_missing(missing)
            enough = len(self._roster.present()) >= self.plan.resources.enough
            event = await self.next_event(min(deadline, patience) if enough else deadline)
            if event is None and enough:
                break
            if event is None or event.kind == "request":
                self._findings.missing = missing
                self._findings.stopped_by = event.body["request"] if event else ""
                self._inquiry.about(self._findings.stopped_by)
                return False
            if event.kind == "gone":
                self._roster.leave(event.node)
        self._nodes = tuple(self._roster.present()[: self.plan.resources.nodes])
        return True

    def _straggler_s(self) -> float:
        return 0.0 if self._started_before else _STRAGGLER_S

    def _say_who_is_missing(self, hosts: list[str]) -> None:
        """To the person who starts the nodes one after the other."""
        if self.place.job_id is None:
            say(self.place, f"waits for {', '.join(hosts)}")

    async def _joined(self, node: int, channel: control.Channel) -> None:
        if not await self._roster.welcome(node, channel):
            return
        self.inbox.put_nowait(Event("joined", node))
        await self.read_from(node, channel)

    async def _until_all_ended(self) -> None:
        while waiting := set(self._nodes) - set(self._findings.reports) - self._lost_nodes():
            event = await self.next_event(self._deadline)
            if event is None:
                for node in sorted(waiting):
                    self._lose(node, silent=False)
            else:
                self._react(event)

    def _lost_nodes(self) -> set[int]:
        return {node for node, host in enumerate(self.place.hosts) if host in self._findings.lost}

    def _react(self, event: Event) -> None:
        if event.kind in Lookout.KINDS:
            self._lookout.take(event)
        elif event.kind == "report":
            self._take(Report.from_message(event.body))
        elif event.kind == "gone":
            self._lose(event.node, silent=bool(event.body.get("silent")))
        elif event.kind == "request":
            self._request(event.node, event.body["request"])

    def _lose(self, node: int, silent: bool) -> None:
        """A node's agent is gone: with a word from its kernel, or, where the node itself is dead, in silence."""
        self._roster.leave(node)
        if node not in self._nodes or node in self._findings.reports:
            return
        host = self.place.hosts[node]
        self._journal.note("lost", node=node, host=host, silent=silent)
        self._findings.lost[host] = time.time() - (control.SILENCE_S if silent else 0)
        if silent:
            self._findings.dead.append(host)
        self._stop_all("failure", self.plan.budgets.failure_grace_s)

    def _take(self, report: Report) -> None:
        self._journal.note("ended", **report.to_message())
        self._findings.reports[report.node] = report
        if report.code:
            self._stop_all("failure", self.plan.budgets.failure_grace_s)

    def _request(self, node: int, request: str) -> None:
        """Slurm asks every node at once, and before a time limit in two ways: neither is impatience."""
        if not self._findings.stopped_by and not self._findings.failed:
            self._findings.stopped_by = request
        self._inquiry.about(request)
        with contextlib.suppress(OSError):  # the ranks get the signal as well
            self._attempt.stop_file.touch()
        now = asyncio.get_running_loop().time()
        if now - self._requests.setdefault((node, request), now) > _IMPATIENT_S:
            self._tell_to_stop("impatience", 0.0)
        else:
            self._stop_all(request, 0.0 if self.run.cancelled == "now" else self.plan.budgets.stop_grace_s)

    def _answered(self, job: Job, stop: Stop) -> None:
        self._journal.note("asked", **asdict(stop))
        secure(self.plan, self.run, self._attempt, stop, job)
        if stop.ending and stop.cause == "cancelled":
            left = job.kill_wait_s
            self._loop.call_soon_threadsafe(self._loop.call_later, left - max(_LAST_S, left / 10), self._cut_off)

    def _cut_off(self) -> None:
        """SIGKILL is about to come."""
        self._last_word = asyncio.create_task(asyncio.to_thread(cut_off, self.run, self._attempt))

    def _stop_all(self, why: str, grace_s: float) -> None:
        """Have every node stop its ranks, once."""
        if self._deadline is None:
            self._tell_to_stop(why, grace_s)

    def _tell_to_stop(self, why: str, grace_s: float) -> None:
        self._journal.note("stop", why=why, grace_s=grace_s)
        self._deadline, self._killing = asyncio.get_running_loop().time() + grace_s + _REPORT_S, not grace_s
        self._lookout.rest()
        self._roster.broadcast("stop", {"grace_s": grace_s})
        self.stop_ranks(grace_s)

    async def _conclude(self) -> tuple[Result, Next]:
        """The verdict on the attempt, and what follows.

        Raises:
            Superseded: that is for another attempt to say.
        """
        findings = self._findings
        if findings.stopped_by in OF_SLURM and (stop := await self._inquiry.answer()) is not None:
            findings.explain_stop(stop)
        training = training_of(self.run, self._attempt)
        result = judge(self.plan, findings, training, self._attempt.number + 1, time.time() - self._began)
        if self._attempt.superseded:
            raise Superseded
        fit = self._roster.leader_is_fit and len(self._roster.present()) >= self.plan.resources.enough
        can_stay = fit and not findings.stopped_by
        bad = findings.hosts_to_avoid(result.cause)
        work = asyncio.to_thread(conclude, self.plan, self.run, self._attempt, result, self._job, can_stay, bad)
        result, then = await work
        self._journal.note("verdict", outcome=result.outcome, cause=result.cause, then=result.then)
        say(self.place, result.line() if then.what == retry.END else f"{result.attempt_line()} · {result.then}")
        return result, then

    def _exit_code(self, result: Result, then: Next) -> int:
        if then.what != retry.END and self.place.packed:
            return REQUEUE_ME
        return TERMINATED if then.what != retry.END else EXIT_CODES.get(result.outcome, 1)

    async def _release(self, code: int) -> int:
        """Let the other nodes go; returns the exit code of all."""
        self._roster.broadcast("done", {"code": code})
        await self._roster.close()
        return code

    def _resume(self) -> Checkpoint | None:
        """The newest checkpoint of this run, or the one the plan starts from."""
        found = checkpoints.choose(self.run.checkpoints)
        for why in found.passed_over:
            self._journal.note("passed_over", why=why)
            say(self.place, f"warning: {why}")
        return found.checkpoint or (checkpoints.read(Path(self.plan.resume)) if self.plan.resume else None)

    def _hosts(self) -> list[str]:
        """Those that train."""
        return [self.place.hosts[node] for node in self._nodes]
