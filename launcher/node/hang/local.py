"""The ranks of this node, as their agent sees them from outside: whether they move, and what each of them is at.

Every call may block, on a file system that does: for a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.node import processes, temporary
from launcher.node.hang import ras, stacks
from launcher.node.hang.facts import Collective, Frame, NodeFacts, RankFacts
from launcher.plan.plan import Plan
from launcher.records.files import last_json_line, parse_json_line, read_json
from launcher.records.rundir import Attempt

_DIRECTORY_VARIABLE = "LAUNCHER_WATCH_DIR"
_WINDOW_S = 0.5
"""How long to look how busy a rank is."""
_ANSWER_S = 1.5
"""How long a rank may take to tell its collectives: it looks twice a second."""
_STACKS_S = 2.0
"""And all of them to write their stacks."""
_BUSY = 0.02
"""The share of a CPU above which a rank works rather than waits."""
_CHILDREN_S, _MOST_CHILDREN = 1.0, 16
"""And what a rank has forked to write theirs, data loaders mostly: for the record, nothing is judged by them."""
_MOST_FRAMES, _MOST_COLLECTIVES, _MOST_GROUPS = 40, 40, 200
"""Of a rank, so that the facts of a node fit into a message."""
_TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def watch_directory(plan: Plan) -> Generator[Path | None]:
    """A private directory of this node in which ranks and agent find each other; None where there can be none.

    In a container's image the ranks see the host's /tmp, but not what TMPDIR may name.
    """
    if plan.budgets.hang is None:
        yield None
        return
    try:
        path = Path(tempfile.mkdtemp(prefix=f"{temporary.PREFIX}watch-", dir="/tmp" if plan.container else None))
    except OSError:
        yield None
        return
    with temporary.held(path):
        yield path


@dataclass(frozen=True)
class Pulse:
    """What moved on a node since it was last looked at."""

    record: bool = False
    """The training's own record."""
    collectives: bool = False
    log: bool = False
    busy: bool = False
    """All ranks here used their CPUs or GPUs."""


class Local:
    """The ranks of one node in one attempt."""

    def __init__(
        self,
        attempt: Attempt,
        node: int,
        host: str,
        first_rank: int,
        directory: Path | None,
        pids: Mapping[int, int],
        record: Path | None,
        ras_address: str = "",
    ) -> None:
        """Nothing is known yet.

        Args:
            attempt: for the logs, and for the stacks.
            node: this one.
            host: its name.
            first_rank: the global number of local rank 0.
            directory: where the ranks leave what they have to say, if anywhere.
            pids: of the ranks, by local rank; as far as they are known, now and later.
            record: the training's own record, where it is this node's to look at.
            ras_address: where NCCL listens, if the ranks talk through it.
        """
        self._attempt, self._node, self._host, self._first = attempt, node, host, first_rank
        self._directory, self._pids, self._record, self._ras = directory, pids, record, ras_address
        self._seen: dict[str, Any] = {}
        self._asked = 0

    def contract(self) -> dict[str, str]:
        """What tells a rank where to leave what it has to say."""
        watched = {} if self._directory is None else {_DIRECTORY_VARIABLE: str(self._directory)}
        return {**watched, **({ras.VARIABLE: self._ras} if self._ras else {})}

    def look(self) -> Pulse:
        """What moved since the last look."""
        said = {rank: self._said(rank) for rank in self._ranks()}
        now = {
            "record": _size(self._record) if self._record is not None else 0,
            "collectives": {rank: one.get("entered") or {} for rank, one in said.items()},
            "log": [_size(self._attempt.rank_log(rank)) for rank in said],
        }
        before, self._seen = self._seen, {**self._seen, **now}
        moved = {name: name in before and before[name] != value for name, value in now.items()}
        return Pulse(**moved, busy=not any(moved.values()) and self._busy())

    def _ranks(self) -> dict[int, int]:
        """The processes of the ranks, by global rank."""
        return {self._first + local: pid for local, pid in sorted(self._pids.items())}

    def _said(self, rank: int) -> dict[str, Any]:
        """What a rank says of itself twice a second; nothing, where it does not, or is just writing it."""
        if self._directory is None:
            return {}
        try:
            line = (self._directory / f"rank-{rank}").read_bytes().partition(b"\n")[0]
        except OSError:
            return {}
        return parse_json_line(line) or {}

    def _busy(self) -> bool:
        """Whether every rank that lives, with what it has started, used a processor since the last such question."""
        now, used = time.monotonic(), {pid: _tree_ticks(pid) for pid in self._ranks().values()}
        before, self._seen["used"] = self._seen.get("used"), (now, used)
        if before is None:
            return True
        then, earlier = before
        alive = [pid for pid, ticks in used.items() if ticks is not None]
        shares = [((used[pid] or 0) - (earlier.get(pid) or 0)) / _TICKS / max(now - then, 0.01) for pid in alive]
        return all(share > _BUSY for share in shares) or any(self._gpus())

    def _gpus(self) -> tuple[float | None, ...]:
        """How busy the GPUs here are, by the newest sample."""
        sample = last_json_line(self._attempt.samples(self._node), 16384) or {}
        return tuple(gpu.get("utilisation") for gpu in sample.get("gpus") or [])

    def collect(self) -> NodeFacts:
        """What each rank is at, within some seconds; its stacks go to a file of the attempt, too."""
        ranks = self._ranks()
        said = {rank: self._said(rank) for rank in ranks}
        pids = {rank: _python_of(pid, said[rank].get("pid")) for rank, pid in ranks.items()}
        self._ask()
        before = {rank: _ticks(pid) for rank, pid in pids.items()}
        began = time.monotonic()
        found = self._stacks(pids, {rank: one.get("thread") for rank, one in said.items()})
        answers = self._answers(set(ranks))
        time.sleep(max(0.0, began + _WINDOW_S - time.monotonic()))
        seconds = time.monotonic() - began
        busy = {rank: ((_ticks(pid) or 0) - (before[rank] or 0)) / _TICKS / seconds for rank, pid in pids.items()}
        facts = (self._facts(rank, pids[rank], found[rank], answers.get(rank, {}), busy[rank]) for rank in ranks)
        return NodeFacts(tuple(facts), self._gpus(), self._nccl())

    def _nccl(self) -> tuple[str, ...]:
        """What NCCL says of the whole job, asked once: where rank 0 is."""
        report = ras.ask(self._ras) if self._ras and self._first == 0 else ""
        if report:
            with contextlib.suppress(OSError), open(self._attempt.nccl_ras, "a") as file:
                file.write(f"# {_moment()}\n{report.rstrip()}\n\n")
        return ras.troubles(report)

    def _facts(
        self, rank: int, pid: int, stack: tuple[Frame, ...], answer: Mapping[str, Any], busy: float
    ) -> RankFacts:
        said, groups = self._said(rank), answer.get("groups", {})
        silent = time.monotonic() - said["time"] if said.get("entered") is not None else None
        return RankFacts(
            rank,
            self._host,
            _state(pid),
            round(max(0.0, busy), 2),
            _wait_channel(pid),
            None if silent is None else round(silent, 1),
            stack[:_MOST_FRAMES],
            tuple(_collectives(answer, said))[:_MOST_COLLECTIVES],
            dict(list(groups.items())[:_MOST_GROUPS]),
        )

    def _ask(self) -> None:
        """Have the ranks tell their collectives."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                (self._directory / "ask").touch()
                self._asked = (self._directory / "ask").stat().st_mtime_ns

    def _answers(self, waiting: set[int]) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + _ANSWER_S
        while self._directory is not None and waiting - found.keys() and time.monotonic() < deadline:
            for rank in waiting - found.keys():
                answer = read_json(self._directory / f"answer-{rank}.json") or {}
                if answer.get("asked") == self._asked:
                    found[rank] = answer
            time.sleep(0.05)
        return found

    def _stacks(self, pids: Mapping[int, int], threads: Mapping[int, int | None]) -> dict[int, tuple[Frame, ...]]:
        """Of the main threads: all are asked at once, for one that is blocked in the kernel does not answer."""
        files = {rank: (self._directory or Path("/nowhere")) / f"stack-{rank}" for rank in pids}
        starts = {rank: _size(file) for rank, file in files.items()}
        asked = {rank for rank, pid in pids.items() if _state(pid) in ("R", "S", "D") and stacks.ask(pid)}
        deadline, found = time.monotonic() + _STACKS_S, dict[int, tuple[Frame, ...]]()
        for rank in asked:
            text = stacks.written(files[rank], starts[rank], deadline)
            self._keep(rank, pids[rank], text)
            found[rank] = stacks.main_thread(text, threads[rank])
        self._keep_childrens({rank: pids[rank] for rank in asked}, files)
        return {rank: found.get(rank) or stacks.by_py_spy(pid) for rank, pid in pids.items()}

    def _keep_childrens(self, pids: Mapping[int, int], files: Mapping[int, Path]) -> None:
        """Forked processes write to the file of their rank, one after the other."""
        deadline = time.monotonic() + _CHILDREN_S
        for rank, pid in pids.items():
            for child in itertools.islice(_family(pid), 1, 1 + _MOST_CHILDREN):
                start = _size(files[rank])
                if time.monotonic() < deadline and stacks.ask(child):
                    self._keep(rank, child, stacks.written(files[rank], start, deadline))

    def _keep(self, rank: int, pid: int, text: str) -> None:
        with contextlib.suppress(OSError), open(self._attempt.rank_stacks(rank), "a") as file:
            file.write(f"# {_moment()}, rank {rank} on {self._host}, process {pid}\n{text}\n")


def _collectives(answer: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[Collective]:
    """What the rank has answered; else the numbers that it last gave, as far as it still could."""
    if "collectives" in answer:
        yield from (Collective(**one) for one in answer["collectives"])
        return
    for group, number in (said.get("entered") or {}).items():
        yield Collective(group, number, "", done=True)


def _moment() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _python_of(pid: int, said: int | None) -> int:
    """The process that says that it is the rank, if it is one below torchrun's: a container may number them anew."""
    return said if said is not None and said in _family(pid) else pid


def _family(pid: int) -> Iterator[int]:
    """A process and all that it has started: simulators, data loaders."""
    yield pid
    for child in processes.children(pid):
        yield from _family(child)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, from the state on; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    """Of a zombie: gone."""
    state = (_stat(pid) or [""])[0]
    return "" if state == "Z" else state


def _ticks(pid: int) -> int | None:
    """Processor time that a process has used."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields and fields[0] != "Z" else None


def _tree_ticks(pid: int) -> int | None:
    """And that of its family; None when it is gone itself."""
    return None if _ticks(pid) is None else sum(_ticks(one) or 0 for one in _family(pid))


def _wait_channel(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text().strip("0")
    except OSError:
        return ""
