"""Node 0's watch over the whole run: when it is suspected to hang, what is found then, and when it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.node.hang.diagnosis import NO_ANSWER, Diagnosis, diagnose
from launcher.node.hang.facts import NodeFacts, RankFacts
from launcher.node.hang.local import Pulse
from launcher.node.hang.pace import Pace
from launcher.plan.plan import Patience, Plan

SUSPICION, MOVES_AGAIN, HANG = "suspicion", "moves_again", "hang"
"""What happens, as the attempt's events have it."""
_FACTS_S = 10.0
"""How long the nodes may take to look into their ranks."""
_LOOK_S = 0.1
_FULLY_BUSY = 0.9
_OVERSLEPT = 3
"""So many periods count at most between two looks: an agent that was itself stopped has missed the moves, too."""


def period_s(patience: Patience) -> float:
    """How often to look whether the run moves: often enough for a pause of five looks to be below the floor."""
    return min(5.0, max(0.2, patience.floor_s / 10))


@dataclass(frozen=True)
class Suspicion:
    """A run that has not moved for longer than it ever does."""

    idle_s: float
    limit_s: float
    diagnosis: Diagnosis
    gpus_busy: bool = False
    """All GPUs compute, or seem to."""
    nccl: tuple[str, ...] = ()
    """The troubles that NCCL itself tells of."""

    def line(self, event: str) -> str:
        """For a person."""
        what = "hang" if event == HANG else "it may hang"
        return f"{what}: nothing moves since {self.idle_s:.0f} s: {self.diagnosis.message}"

    def to_record(self) -> dict[str, Any]:
        seconds = {"seconds": round(self.idle_s, 1), "limit_s": round(self.limit_s, 1)}
        return {**seconds, **asdict(self.diagnosis), "gpus_busy": self.gpus_busy, "nccl": self.nccl}


@dataclass
class HangWatch:
    """Over one attempt."""

    patience: Patience | None
    """None: everything is fine."""
    ranks: Mapping[int, Sequence[int]]
    """Global ranks, by node."""
    hosts: Sequence[str]
    """By node."""
    ask: Callable[[int], None]
    """Have all nodes look into their ranks, and answer with this number."""
    tell: Callable[[str, Suspicion | None], None]
    """Of what happens: a suspicion, that it moves again, that it is to be ended."""
    suspicion: Suspicion | None = None
    """As long as the run stands still."""
    _moved: bool = False
    _programs: bool = False
    _recorded: bool = False
    _busy: dict[int, bool] = field(default_factory=dict)
    _answers: dict[int, NodeFacts] = field(default_factory=dict)
    _question: int = 0

    @staticmethod
    def over(
        plan: Plan,
        nodes: Sequence[int],
        hosts: Sequence[str],
        ask: Callable[[int], None],
        tell: Callable[[str, Suspicion | None], None],
    ) -> HangWatch:
        """Over the ranks of these nodes, which are in the order of the ranks."""
        nproc = plan.resources.nproc_per_node
        ranks = {node: range(place * nproc, (place + 1) * nproc) for place, node in enumerate(nodes)}
        return HangWatch(plan.budgets.hang, ranks, hosts, ask, tell)

    def __enter__(self) -> HangWatch:
        self._task = asyncio.create_task(self.run())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    def take(self, kind: str, node: int, body: Mapping[str, Any]) -> None:
        """What a node says: ``pulse``, what moved; ``facts``, what it sees of its ranks, if that is not too late."""
        if kind == "pulse":
            self._take_pulse(node, Pulse(**body))
        elif body["question"] == self._question:
            self._answers[node] = NodeFacts.from_message(body)

    def _take_pulse(self, node: int, pulse: Pulse) -> None:
        self._moved |= pulse.record or pulse.collectives or pulse.log
        self._programs |= pulse.record or pulse.collectives
        self._recorded |= pulse.record
        self._busy[node] = pulse.busy

    async def run(self) -> None:
        """HangWatch until the run is to be ended, or this is cancelled."""
        if self.patience is None:
            return
        pace, period = Pace(self.patience), period_s(self.patience)
        now = asyncio.get_running_loop().time
        looked_s = spared_s = 0.0
        while True:
            began = now()
            await asyncio.sleep(period)
            limit, end = pace.suspect_s, pace.end_s
            seconds = min(now() - began, _OVERSLEPT * period) + looked_s
            moved, self._moved = self._moved, False
            pace.passed(seconds, moved=moved, works=self._works())
            began = now()
            if pace.idle_s == 0.0:
                self._moves_again()
                spared_s = 0.0
            elif self.suspicion is None and pace.idle_s > limit:
                await self._suspect(SUSPICION, pace.idle_s, limit)
            elif end is not None and pace.idle_s > end + spared_s:
                if await self._suspect(HANG, pace.idle_s, end):
                    return
                spared_s += end
            looked_s = now() - began

    def _works(self) -> bool:
        """Processors tell something only of a program that tells nothing: waiting may take one, too."""
        return not self._programs and bool(self._busy) and all(self._busy.values())

    async def _suspect(self, event: str, idle_s: float, limit_s: float) -> bool:
        """Look into the ranks, and tell what is found; False where it moves, or rather has to be left alone."""
        found = await self._look(idle_s, limit_s)
        spared = event == HANG and found.diagnosis.busy and not self._recorded
        if self._moved or spared:
            return False
        self.suspicion = found
        self.tell(event, found)
        return True

    def _moves_again(self) -> None:
        if self.suspicion is not None:
            self.suspicion = None
            self.tell(MOVES_AGAIN, None)

    async def _look(self, idle_s: float, limit_s: float) -> Suspicion:
        """Have all nodes look into their ranks, and judge."""
        self._question += 1
        self._answers = {}
        self.ask(self._question)
        now = asyncio.get_running_loop().time
        deadline = now() + _FACTS_S
        while self.ranks.keys() - self._answers.keys() and now() < deadline:
            await asyncio.sleep(_LOOK_S)
        use = [gpu for answer in self._answers.values() for gpu in answer.gpus if gpu is not None]
        nccl = tuple(line for answer in self._answers.values() for line in answer.nccl)
        return Suspicion(idle_s, limit_s, diagnose(self._facts()), bool(use) and min(use) >= _FULLY_BUSY, nccl)

    def _facts(self) -> list[RankFacts]:
        told = [one for answer in self._answers.values() for one in answer.ranks]
        known = {one.rank for one in told}
        silent = [
            RankFacts(rank, self.hosts[node], NO_ANSWER)
            for node, ranks in self.ranks.items()
            for rank in ranks
            if rank not in known
        ]
        return [*told, *silent]
