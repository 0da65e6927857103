"""Any node but the first: finds node 0, starts when told, reports, ends when told."""

from __future__ import annotations

import asyncio

from launcher.node import control
from launcher.node.member import TERMINATED, Event, Member, say
from launcher.node.ranks import Start
from launcher.records.submission import submitted


class Follower(Member):
    """The agent of a node that is not the first."""

    _channel: control.Channel | None = None

    async def serve(self) -> int:
        """Do this node's part to its end, in one attempt or several; returns the exit code that node 0 decided."""
        self.background(self._join())
        return await self._until_done()

    async def _join(self) -> None:
        leader, seconds = self.place.hosts[0], self.plan.budgets.rendezvous_s
        secret = self.run.secret.read_text()
        try:
            self._channel = await control.connect(leader, self._start_id, secret, self.place.node, seconds)
        except asyncio.TimeoutError:
            say(self.place, f"no agent came on {leader} (node 0) within {seconds:.0f} s")
            self.inbox.put_nowait(Event("done", 0, {"code": 1}))
        else:
            await self.read_from(0, self._channel)

    def _start_id(self) -> str:
        """Without a scheduler node 0 decides it, perhaps later than now; an id of an earlier start finds nobody."""
        return self.place.start_id or str(submitted(self.run).get("start"))

    async def _until_done(self) -> int:
        while True:
            event = await self.next_event(None)
            assert event is not None
            if event.kind == "done":
                if why := event.body.get("why"):
                    say(self.place, why)
                return int(event.body["code"])
            if event.kind == "gone":
                return await self._abandoned()
            self._react(event)

    def _react(self, event: Event) -> None:
        if event.kind == "start":
            start = Start(**event.body)
            if self.place.node in start.nodes:
                self.start_ranks(start)
        elif event.kind == "look":
            self.look_into_ranks(event.body["question"])
        elif event.kind == "stop":
            self.stop_ranks(event.body["grace_s"])
        elif self._channel is not None:
            self._channel.send({"kind": event.kind, "body": event.body})
        elif event.kind == "request":  # nothing runs yet that had to be stopped
            self.inbox.put_nowait(Event("done", 0, {"code": TERMINATED}))

    async def _abandoned(self) -> int:
        """Without node 0 there is no training: end the ranks rather than leave them to their time-outs."""
        say(self.place, f"lost contact with {self.place.hosts[0]} (node 0)")
        if self.ranks is not None:
            await self.ranks.stop(self.plan.budgets.failure_grace_s)
        return 1
