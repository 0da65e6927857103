"""What was seen of the ranks of an all-reduce test, and what it means: pure functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

PHASES = ("python", "torch", "device", "rendezvous", "all_reduce", "measure", "done")
"""Of :mod:`launcher.train.probe`, in order; before it says anything, its interpreter starts."""
OK, WRONG, FAILED, HUNG = "ok", "wrong", "failed", "hung"
"""How a rank ended, and how a test did: a wrong sum, an error or a signal, killed at the deadline."""
_DOING = {
    "python": "starting its Python",
    "torch": "importing torch",
    "device": "setting up its device",
    "rendezvous": "waiting for the others to come",
    "all_reduce": "waiting in its first all_reduce",
    "measure": "waiting in a later all_reduce",
    "done": "done",
}


@dataclass(frozen=True)
class RankSeen:
    """One rank of the test, as its node saw it."""

    rank: int
    host: str
    phase: str = PHASES[0]
    """The last one that it began."""
    outcome: str = ""
    """Empty while it runs."""
    error: str = ""
    ended: float = 0.0
    """Seconds since the epoch."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it said of itself: ``device``, ``backend``, ``torch``, ``sizes``, ``wrong``, ``first_s``."""
    text: str = ""
    """The end of what it printed besides, such as NCCL's warnings."""

    def took(self, message: Mapping[str, Any]) -> RankSeen:
        """With a line of its output taken in."""
        facts = {**self.facts, **{name: value for name, value in message.items() if name not in _NOT_FACTS}}
        if message["phase"] == "failed":
            return replace(self, phase=message["during"], error=message["error"], facts=facts)
        return replace(self, phase=message["phase"], facts=facts)

    def to_message(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @staticmethod
    def from_message(data: Mapping[str, Any]) -> RankSeen:
        """Read what :meth:`to_message` made."""
        return RankSeen(**data)


@dataclass(frozen=True)
class Request:
    """A test, as each of its nodes is asked for its part."""

    plan: str
    """As JSON: interpreter, working directory and environment of the ranks."""
    ranks: Mapping[str, Sequence[int]]
    """Of each host, in the order of the ranks."""
    port: int
    """Where rank 0 listens."""
    backend: str
    deadline_s: float
    largest: int | None = None
    """Bytes of the largest all-reduce; None for the probe's own choice."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self.ranks)

    @property
    def world_size(self) -> int:
        return sum(map(len, self.ranks.values()))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Request:
        """Read what :meth:`to_json` wrote."""
        return Request(**json.loads(text))


_NOT_FACTS = ("phase", "during", "error")


@dataclass(frozen=True)
class Verdict:
    """What a test showed."""

    outcome: str
    line: str
    """For a person: which rank, on which host, what."""
    culprits: tuple[int, ...] = ()
    """The ranks that went wrong before the others; empty where all did alike."""


def judge(ranks: Sequence[RankSeen]) -> Verdict:
    """One cause: the first failure, else who is behind the others when all wait, else wrong sums."""
    ranks = sorted(ranks, key=lambda seen: seen.rank)
    failed = [seen for seen in ranks if seen.outcome == FAILED]
    if failed:
        first = min(failed, key=lambda seen: (seen.phase in TOGETHER, seen.ended))
        return Verdict(FAILED, f"{named([first])} failed while {_DOING[first.phase]}: {first.error}", (first.rank,))
    if any(seen.outcome not in (OK, WRONG) for seen in ranks):
        return _hung(ranks)
    wrong = [seen for seen in ranks if seen.outcome == WRONG]
    if wrong:
        culprits = () if len(wrong) == len(ranks) else tuple(seen.rank for seen in wrong)
        return Verdict(WRONG, f"the sums of {named(wrong)} are wrong", culprits)
    return Verdict(OK, f"{number_of(len(ranks), 'rank')} added up rightly")


TOGETHER = ("rendezvous", "all_reduce", "measure")
"""Phases in which a rank fails because another one has."""


def _hung(ranks: Sequence[RankSeen]) -> Verdict:
    """Who hangs is who has not come as far as the others, or has another device than they have."""
    behind = min((seen.phase for seen in ranks), key=PHASES.index)
    late = [seen for seen in ranks if seen.phase == behind]
    others = [seen for seen in ranks if seen.phase != behind]
    if others:
        rest = f"{named(others)} {_are(others, _DOING[max(others, key=_progress).phase])}"
        return Verdict(HUNG, f"{named(late)} never got beyond {_DOING[behind]}; {rest}", _ranks(late))
    if odd := _odd_devices(ranks):
        device = odd[0].facts["device"]
        return Verdict(HUNG, f"{named(odd)} {_verb(odd)} on a {device}, and the others are not", _ranks(odd))
    return _at_places(ranks) or Verdict(HUNG, f"all of them are {_DOING[behind]}".replace(" its ", " the "))


def _at_places(ranks: Sequence[RankSeen]) -> Verdict | None:
    """All wait in the same phase, and some in another line than the others; None where all wait in the same."""
    places: dict[str, list[RankSeen]] = {}
    for seen in ranks:
        places.setdefault(seen.facts.get("place", ""), []).append(seen)
    if len(places) < 2:
        return None
    few_first = sorted(places.items(), key=lambda item: len(item[1]))
    line = ", ".join(f"{named(them)} {_verb(them)} at {place or 'an unknown place'}" for place, them in few_first)
    usual = few_first[-1][1]
    odd = [seen for seen in ranks if seen not in usual] if len(usual) * 2 > len(ranks) else []
    return Verdict(HUNG, line, _ranks(odd))


def _verb(ranks: Sequence[RankSeen]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _are(ranks: Sequence[RankSeen], doing: str) -> str:
    return f"{_verb(ranks)} {doing}".replace(" its ", " the ")


def _progress(seen: RankSeen) -> int:
    return PHASES.index(seen.phase)


def _ranks(seen: Iterable[RankSeen]) -> tuple[int, ...]:
    return tuple(one.rank for one in seen)


def _odd_devices(ranks: Sequence[RankSeen]) -> list[RankSeen]:
    counts = Counter(seen.facts.get("device") for seen in ranks)
    return [seen for seen in ranks if seen.facts.get("device") == "cpu"] if len(counts) > 1 else []


_MOST_NAMED = 8


def named(ranks: Sequence[RankSeen]) -> str:
    """``rank 3 (gpu02)``, or of several ``ranks 0 (gpu01), 1 (gpu01)``."""
    some = ", ".join(f"{seen.rank} ({seen.host})" for seen in ranks[:_MOST_NAMED])
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {some}{more}"


def number_of(count: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def bandwidth(ranks: Sequence[RankSeen]) -> float | None:
    """The bus bandwidth at the largest size, in 10^9 bytes a second: the slowest rank's, for the others wait for it."""
    found = [seen.facts["sizes"][-1]["busbw"] for seen in ranks if seen.facts.get("sizes")]
    return min(found) if found and len(found) == len(ranks) > 1 else None
