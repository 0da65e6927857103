"""What the ranks of a run printed: their logs in all attempts, as they grow, each byte once.

The lines of a log carry no time. The samples of its node do, and say how long the log was: of a line it is known
between which two samples it began, and that is how lines of several logs are put in order.
"""

from __future__ import annotations

import codecs
import heapq
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.records.files import read_json, read_json_lines
from launcher.records.rundir import Attempt, RunDir

_BLOCK = 1 << 20
"""Bytes that are read at once."""
_BLOCK_OF_MANY = 1 << 16
_STILL_READ = 2
"""The newest attempts, whose logs are looked at again and again: a node that was cut off may go on with one."""


@dataclass(frozen=True)
class Log:
    """A file that one process of an attempt prints into."""

    attempt: Attempt
    path: Path
    name: str
    """``rank 3``, or ``torchrun 1`` for what torchrun printed on node 1."""
    rank: int | None = None


@dataclass(frozen=True)
class Piece:
    """Text that is new: whole lines, or of a log that is read alone whatever there is."""

    log: Log
    text: str


Choice = Callable[[Attempt], Sequence[Log]]
"""Which logs of an attempt are wanted, as far as they are there."""


def of_rank(rank: int) -> Choice:
    """The log of one rank, by its global number."""
    return lambda attempt: [_log_of(attempt, rank)]


def of_all_ranks(attempt: Attempt) -> list[Log]:
    """The logs of all ranks."""
    return [_log_of(attempt, rank) for rank in _ranks_in(attempt)]


def of_node(node: int | str) -> Choice:
    """The logs of a node's ranks and of its torchrun; the node by its number in the job, or by its host's name."""

    def choose(attempt: Attempt) -> list[Log]:
        start = read_json(attempt.rendezvous) or {}
        hosts = start.get("hosts") or []
        places: list[Any] = start.get("nodes") or list(range(len(hosts)))
        place = hosts.index(node) if node in hosts else places.index(node) if node in places else None
        if place is None:
            return []
        each = ((read_json(attempt.run.plan) or {}).get("resources") or {}).get("nproc_per_node", 0)
        ours = range(place * each, (place + 1) * each)
        torchrun = Log(attempt, attempt.node_log(places[place]), f"torchrun {places[place]}")
        return [torchrun, *(_log_of(attempt, rank) for rank in ours)]

    return choose


def _log_of(attempt: Attempt, rank: int) -> Log:
    return Log(attempt, attempt.rank_log(rank), f"rank {rank}", rank)


def _ranks_in(attempt: Attempt) -> list[int]:
    found = (re.fullmatch(r"rank-(\d+)\.log", path.name) for path in attempt.path.glob("rank-*.log"))
    return sorted(int(match[1]) for match in found if match)


class Printed:
    """Reads the chosen logs of a run, the older attempts first, and goes on where it was."""

    def __init__(self, run: RunDir, choose: Choice, attempt: int | None = None) -> None:
        """`attempt` is the number of the one attempt that is wanted, from 0; all are where it is None."""
        self._run, self._choose, self._only = run, choose, attempt
        self._tails: dict[Path, _Tail] = {}
        self._read: set[int] = set()

    def new(self, *, last: bool = False, whole_lines: bool = False) -> Iterator[Piece]:
        """What was printed since the last call, each attempt's after that of those before it.

        Args:
            last: the run has ended: unfinished lines are handed out, and all attempts are looked at once more.
            whole_lines: hand out lines only, from a log that is read alone, too. It must be the same in all calls.
        """
        attempts = [one for one in self._run.attempts() if self._only in (None, one.number)]
        for index, attempt in enumerate(attempts):
            old = index < len(attempts) - _STILL_READ
            if last or not old or attempt.number not in self._read:
                yield from self._of_attempt(attempt, last=last or old, whole_lines=whole_lines)
            if old:
                self._read.add(attempt.number)

    def _of_attempt(self, attempt: Attempt, *, last: bool, whole_lines: bool) -> Iterator[Piece]:
        logs = self._choose(attempt)
        if len(logs) == 1 and not whole_lines:
            yield from (Piece(logs[0], text) for text in self._tail(logs[0]).texts())
            return
        first_time = any(log.path not in self._tails for log in logs)
        times = _times(attempt) if first_time and len(logs) > 1 else {}
        each = (self._timed(log, times.get(log.rank, []), last) for log in logs)
        for _, piece in heapq.merge(*each, key=lambda timed: timed[0]):
            yield piece

    def _timed(self, log: Log, seen: list[tuple[int, float]], last: bool) -> Iterator[tuple[float, Piece]]:
        for offset, line in self._tail(log).lines(last):
            yield _time_of(offset, seen), Piece(log, line)

    def _tail(self, log: Log) -> _Tail:
        return self._tails.setdefault(log.path, _Tail(log.path))


class _Tail:
    """A file that grows, and how far it has been read. It is opened only for reading: there may be thousands."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def texts(self) -> Iterator[str]:
        """What is new; a character that is half written comes with its other half."""
        for block in self._blocks(_BLOCK):
            yield self._decoder.decode(block)

    def lines(self, last: bool) -> Iterator[tuple[int, str]]:
        """The lines that are new and complete, with where they begin; the last time also one without its end."""
        for block in self._blocks(_BLOCK_OF_MANY):
            data = self._rest + block
            begin = self._offset - len(data)
            *whole, self._rest = data.split(b"\n")
            for line in whole:
                yield begin, _as_seen(line)
                begin += len(line) + 1
        if last and self._rest:
            rest, self._rest = self._rest, b""
            yield self._offset - len(rest), _as_seen(rest)

    def _blocks(self, size: int) -> Iterator[bytes]:
        while block := self._block(size):
            self._offset += len(block)
            yield block

    def _block(self, size: int) -> bytes:
        try:
            if self._path.stat().st_size <= self._offset:
                return b""
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                return file.read(size)
        except OSError:  # not there yet, or not to be had just now
            return b""


def _as_seen(line: bytes) -> str:
    """A line as a terminal leaves it: of a bar of progress that is drawn over and over, the last one."""
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2] + "\n"


def _times(attempt: Attempt) -> dict[int | None, list[tuple[int, float]]]:
    """For each rank, by time: how long its log was when a sample was taken, and when that was."""
    found: dict[int | None, list[tuple[int, float]]] = {}
    for path in attempt.path.glob("samples-*.jsonl"):
        before: set[int] = set()
        for sample in read_json_lines(path):
            sizes = {one["rank"]: one["log_bytes"] for one in sample.get("ranks", ()) if "log_bytes" in one}
            for rank in before - sizes.keys():  # it has ended since
                found[rank].append((_NO_END, sample["time"]))
            for rank, size in sizes.items():
                found.setdefault(rank, []).append((size, sample["time"]))
            before = set(sizes)
    return found


_NO_END = 1 << 62


def _time_of(offset: int, seen: list[tuple[int, float]]) -> float:
    """When a line that begins there was seen first; without any sample after it, later than all others."""
    index = bisect_right(seen, offset, key=lambda one: one[0])
    return seen[index][1] if index < len(seen) else math.inf
