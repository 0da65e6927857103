"""What the nodes of a running attempt last said of themselves, and what node 0 found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from launcher.records.columns import is_number
from launcher.records.files import last_json_line, read_json, read_json_lines
from launcher.records.preflight import Finding
from launcher.records.rundir import Attempt

_STALE_S, _STALE_PERIODS = 30.0, 3
"""A sample that is older than both says nothing of now: the next two are missing, and a network file system has had
time to show them. One from so far in the future comes from a clock of which nothing can be said either."""
_WINDOW = 16384
"""Bytes at the end of a file, which hold the newest sample of a node with 16 GPUs."""


def newest_samples(attempt: Attempt, period_s: float, now: float) -> list[dict[str, Any]]:
    """The newest sample of each node that has one, with ``host``, ``age_s`` and ``stale``: the ends of the files.

    GPUs of which the driver has told nothing for as long are left out: ``gpus`` is None then. `period_s` is the time
    between two samples.
    """
    stale_s = max(_STALE_S, _STALE_PERIODS * period_s)
    start = read_json(attempt.rendezvous) or {}
    nodes = list(zip(start.get("nodes") or (), start.get("hosts") or ()))
    found = ((node, host, last_json_line(attempt.samples(node), _WINDOW)) for node, host in nodes)
    return [_dated(node, host, sample, now, stale_s) for node, host, sample in found if sample and _is_sample(sample)]


def _is_sample(record: Mapping[str, Any]) -> bool:
    """Another version may tell other things; of one that lacks these nothing is shown."""
    return all(is_number(record.get(name)) for name in ("time", "memory_used_mb", "memory_limit_mb"))


def _dated(node: int, host: str, sample: Mapping[str, Any], now: float, stale_s: float) -> dict[str, Any]:
    age_s = now - sample["time"]
    dated = {"node": node, "host": host, "age_s": round(age_s, 1), "stale": abs(age_s) > stale_s, **sample}
    if sample.get("gpus") is not None and (sample.get("gpus_age_s") or 0.0) > stale_s:
        dated["gpus"] = None
    return dated


def warnings_and_suspicion(attempt: Attempt) -> tuple[list[dict[str, str]], str]:
    """What node 0 has said to be silently wrong, and why it suspects the attempt to hang: the events have it.

    The suspicion is empty while the attempt moves.
    """
    names = Finding.__dataclass_fields__
    events = list(read_json_lines(attempt.events))
    warnings = [{name: event[name] for name in names} for event in events if _is_warning(event)]
    moves = [event for event in events if event.get("event") in ("suspicion", "moves_again", "hang")]
    stuck = moves and moves[-1]["event"] != "moves_again"
    return warnings, f"may hang: {moves[-1].get('message', '')}" if stuck else ""


def _is_warning(event: Mapping[str, Any]) -> bool:
    return event.get("event") == "warning" and event.keys() >= Finding.__dataclass_fields__.keys()


@dataclass(frozen=True)
class Use:
    """How busy a node is; shares from 0 to 1, None where it is not known."""

    host: str
    cpu: float | None
    memory: float
    """Of what the job may use."""
    gpus: Sequence[float]
    """Those that tell."""
    gpu_memory: float | None
    """Of the fullest GPU."""

    @property
    def gpu(self) -> float | None:
        return mean(self.gpus) if self.gpus else None


def use_of(sample: Mapping[str, Any]) -> Use:
    """A sample in a few numbers."""
    gpus = [gpu for gpu in sample.get("gpus") or () if "error" not in gpu]
    return Use(
        sample["host"],
        sample.get("cpu"),
        sample["memory_used_mb"] / max(1, sample["memory_limit_mb"]),
        [gpu["utilisation"] for gpu in gpus if gpu["utilisation"] is not None],
        max((gpu["memory_used_mb"] / max(1, gpu["memory_total_mb"]) for gpu in gpus), default=None),
    )
