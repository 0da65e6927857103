"""The form of a topic: how to look, how to judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from launcher.node.preflight.wanted import Wanted
from launcher.records.preflight import WARNING, Check, Facts, Finding

NOT_CHECKED = Check(
    "not-checked", "a check that crashed or had no answer in time", "look at the node by hand", (WARNING,)
)


def _no_answer(wanted: Wanted, name: str, seconds: float) -> Finding:
    return NOT_CHECKED.finding(wanted.host, f"{name}: no answer within {seconds:g} s")


@dataclass(frozen=True)
class Topic:
    """Things that are looked at together."""

    name: str
    """Of its facts in the report."""
    look: Callable[[Wanted, float], dict[str, Any]]
    """Runs in a thread of its own, and may hang; a program that it starts it ends after so many seconds."""
    judge: Callable[[Wanted, Facts], Iterable[Finding]]
    """Pure; gets the facts of all topics, its own among them."""
    deadline_s: float = 2.0
    late: Callable[[Wanted, str, float], Finding] = _no_answer
    """What it means when nothing was seen before the deadline."""
    checks: tuple[Check, ...] = ()
    """What it may find."""
