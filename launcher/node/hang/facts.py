"""What can be seen of ranks that stand still; plain data, JSON both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Frame:
    """A place in a Python stack."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Collective:
    """One that a rank has entered."""

    group: str
    """The process group, by torch's name."""
    number: int
    """The how-many-th of the group."""
    name: str
    """Empty where only the number is known."""
    done: bool
    shape: str = ""
    p2p: bool = False
    """Of two ranks only: send, recv."""


@dataclass(frozen=True)
class RankFacts:
    """One rank, seen from its node."""

    rank: int
    host: str
    state: str = ""
    """As proc(5) has it: R runs, S sleeps, D is blocked in the kernel, T is stopped; empty: the process is gone."""
    busy: float = 0.0
    """The share of a CPU that it used while it was looked at."""
    wait_channel: str = ""
    """Where in the kernel it sleeps, if that may be known."""
    silent_s: float | None = None
    """How long its Python has not been able to say anything; None where it never did."""
    stack: tuple[Frame, ...] = ()
    """Of the main thread, the innermost first."""
    collectives: tuple[Collective, ...] = ()
    groups: Mapping[str, list[int]] = field(default_factory=dict)
    """Members of the process groups that it knows, by global rank."""

    @staticmethod
    def from_message(data: Mapping[str, Any]) -> RankFacts:
        nested: dict[str, Any] = {
            "stack": tuple(Frame(**frame) for frame in data["stack"]),
            "collectives": tuple(Collective(**one) for one in data["collectives"]),
        }
        return RankFacts(**{**data, **nested})


@dataclass(frozen=True)
class NodeFacts:
    """The ranks of one node."""

    ranks: tuple[RankFacts, ...]
    gpus: tuple[float | None, ...] = ()
    """How busy its GPUs are, 0 to 1."""
    nccl: tuple[str, ...] = ()
    """The troubles that NCCL tells of, where this node has asked it."""

    def to_message(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_message(data: Mapping[str, Any]) -> NodeFacts:
        return NodeFacts(tuple(map(RankFacts.from_message, data["ranks"])), tuple(data["gpus"]), tuple(data["nccl"]))
