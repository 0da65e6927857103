"""Node 0 looks over the samples of all nodes, and over what the ranks told each other, for what is silently wrong."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.node import oddities
from launcher.node.conclusion import progress_of
from launcher.node.oddities import Comparison, Load
from launcher.node.preflight.topic import NOT_CHECKED
from launcher.plan.plan import Plan
from launcher.records.files import read_json
from launcher.records.preflight import Finding
from launcher.records.rundir import Attempt, RunDir

_PREPARED_S = 180.0
"""A script that tells nothing of its progress has begun to train by then; what it did before is not judged."""
_MOST_HOSTS = 8
"""Of one kind: what is wrong on more nodes is known by then."""
_PER_POINT = 6
"""Samples in a point of the memory's course: the largest counts."""
_POINTS = 40


def seen_of(run: RunDir, attempt: Attempt) -> dict[str, Any]:
    """What the training tells of itself. Reads files: not for the thread that must not wait for a file system."""
    iteration, resumed_at = progress_of(run, attempt)
    told = iteration is not None and iteration > resumed_at
    return {"told": told, "ranks": (read_json(attempt.training) or {}).get("ranks")}


class Watch:
    """All that node 0 knows of the nodes and the ranks of one attempt."""

    def __init__(self, plan: Plan, nodes: Mapping[int, str]) -> None:
        """`nodes`: those that train, in the order of their ranks, by number, with their hosts."""
        self._began, self._time_s = time.monotonic(), plan.resources.time_s
        self._ranks_per_node = plan.resources.nproc_per_node
        self._nodes = dict(nodes)
        self._ranks_hosts = [host for host in nodes.values() for _ in range(self._ranks_per_node)]
        self._stale_s = 3 * max(1.0, plan.budgets.sample_s)
        self._windows: dict[int, deque[Load]] = {node: deque(maxlen=oddities.WINDOW) for node in nodes}
        self._heard: dict[int, float] = {}
        self._memory = {node: _Memory() for node in nodes}
        self._comparisons: deque[Comparison] = deque(maxlen=oddities.IN_A_ROW)
        self._told = False
        self._said: set[tuple[str, str]] = set()

    def take(self, node: int, sample: Mapping[str, Any]) -> list[Finding]:
        """Take in a node's sample. With node 0's own, which brings the training's, returns what is newly found."""
        try:
            return self._take(node, sample)
        except Exception as error:  # whoever only looks on must not end a training
            text = f"what the nodes say cannot be judged, {type(error).__name__}: {error}"
            return self._new(iter([NOT_CHECKED.finding(self._nodes[0], text)]))

    def _take(self, node: int, sample: Mapping[str, Any]) -> list[Finding]:
        if "training" in sample:
            self._hear_training(sample["training"])
        if node not in self._nodes or not self._prepared:
            return []
        self._heard[node] = time.monotonic()
        self._windows[node].append(Load.of(sample))
        self._memory[node].add(sample)
        return self._new(self._odd()) if "training" in sample else []

    @property
    def _prepared(self) -> bool:
        return self._told or time.monotonic() - self._began > _PREPARED_S

    def _hear_training(self, training: Mapping[str, Any]) -> None:
        self._told = self._told or training["told"]
        if (ranks := training["ranks"]) is not None:
            now = Comparison.of(ranks)
            if not self._comparisons or self._comparisons[-1] != now:
                self._comparisons.append(now)

    def _odd(self) -> Iterator[Finding]:
        windows = {self._nodes[node]: tuple(loads) for node, loads in self._windows.items() if self._fresh(node)}
        yield from oddities.idle_gpus(windows, self._told)
        yield from oddities.starved_gpus(windows)
        yield from oddities.shared_gpus(windows, self._ranks_per_node)
        yield from oddities.alone(windows, len(self._ranks_hosts))
        if self._comparisons:
            yield from oddities.same_data(self._comparisons[-1], self._ranks_hosts)
            yield from oddities.straggler(tuple(self._comparisons), self._ranks_hosts)
        for node, host in self._nodes.items():
            memory = self._memory[node]
            yield from oddities.memory_creep(host, memory.points, memory.limit, self._left_s)

    def _fresh(self, node: int) -> bool:
        """Nothing is said of a node by what was true of it some time ago."""
        return time.monotonic() - self._heard.get(node, float("-inf")) <= self._stale_s

    @property
    def _left_s(self) -> float:
        return float("inf") if self._time_s is None else self._time_s - (time.monotonic() - self._began)

    def _new(self, findings: Iterator[Finding]) -> list[Finding]:
        """Each is said once, and of each kind not too many."""
        new: list[Finding] = []
        for one in findings:
            kinds = Counter(check for check, _ in self._said)
            if (one.check, one.host) not in self._said and kinds[one.check] < _MOST_HOSTS:
                self._said.add((one.check, one.host))
                new.append(one)
        return new


class _Memory:
    """The course of a node's memory in few points."""

    def __init__(self) -> None:
        self._pending: list[tuple[float, float]] = []
        self._points: deque[tuple[float, float]] = deque(maxlen=_POINTS)
        self.limit = float("inf")

    @property
    def points(self) -> Sequence[tuple[float, float]]:
        return tuple(self._points)

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take in a sample's time, use and limit."""
        self.limit = float(sample["memory_limit_mb"])
        self._pending.append((float(sample["time"]), float(sample["memory_used_mb"])))
        if len(self._pending) == _PER_POINT:
            self._points.append(max(self._pending, key=lambda point: point[1]))
            self._pending.clear()
