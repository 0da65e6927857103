"""From what is seen of ranks that stand still to one line: who waits where, and who is to blame. Pure functions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.node.hang.facts import Collective, Frame, RankFacts

NO_ANSWER = "?"
"""The state of a rank whose node did not answer."""
_DEFAULT_GROUP = "0"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/launcher/train/", "<")
_BUSY = 0.3
_SILENT_S = 3.0
_MOST = 3
"""Ranks, or collectives, that the line describes one by one."""


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong."""

    message: str
    """One line, without the word hang."""
    rank: int | None = None
    """The first of those to blame."""
    host: str | None = None
    waiting: tuple[int, ...] = ()
    """Ranks that wait for others: whatever becomes of them is not their fault."""
    stalled: bool = False
    """All are in the same collective, and it does not end: no program's fault."""
    busy: bool = False
    """Nobody waits for anybody, and some rank computes: it may be at work."""


@dataclass(frozen=True)
class _Wait:
    """A collective of a group that does not end."""

    name: str
    number: int
    group: str
    members: tuple[int, ...]
    inside: Mapping[int, Collective]
    missing: tuple[int, ...]

    def words(self) -> str:
        where = "" if self.group in ("", _DEFAULT_GROUP) else f" of group {self.group} (ranks {numbers(self.members)})"
        return f"{self.name or 'a collective'} #{self.number}{where}" if self.group else self.name

    @property
    def odd(self) -> tuple[int, ...]:
        """Ranks that are in another collective than most; all of them where there is no most."""
        kinds = {rank: _kind(one) for rank, one in self.inside.items() if one.number == self.number}
        counts = Counter(kinds.values()).most_common()
        if len(counts) < 2:
            return ()
        usual = counts[0][0] if counts[0][1] > counts[1][1] else None
        return tuple(sorted(rank for rank, kind in kinds.items() if kind != usual))


def _kind(one: Collective) -> tuple[str, str]:
    return one.name, one.shape if one.name == "all_reduce" else ""


def diagnose(facts: Sequence[RankFacts]) -> Diagnosis:
    """What keeps a run from moving, from the facts of all its ranks."""
    ranks = {one.rank: one for one in sorted(facts, key=lambda one: one.rank)}
    pairs = {rank: one for rank, facts in ranks.items() for one in facts.collectives if one.p2p and not one.done}
    waits = list(_waits(ranks))
    if not waits and not pairs:
        waits = list(_waits({rank: _by_stack(one) for rank, one in ranks.items()}))
    waiting = {rank for wait in waits for rank in wait.inside} | pairs.keys()
    if not waiting:
        return _nobody_waits(list(ranks.values()))
    absent = {rank for wait in waits for rank in wait.missing} or (set(ranks) if pairs else set[int]())
    if roots := sorted((absent or set(filter(lambda rank: _frozen(ranks[rank]), ranks))) - waiting):
        return _missing(ranks, waits, pairs, roots)
    if odd := [wait for wait in waits if wait.odd]:
        return _different(ranks, odd[0])
    return _stalled(ranks, waits, pairs)


def _waits(ranks: Mapping[int, RankFacts]) -> Iterator[_Wait]:
    """The collectives that do not end, one of each group."""
    members = {name: tuple(found) for one in ranks.values() for name, found in one.groups.items()}
    pending: dict[str, dict[int, Collective]] = {}
    entered: dict[str, dict[int, int]] = {}
    for rank, facts in ranks.items():
        for one in facts.collectives:
            if one.p2p:
                continue
            entered.setdefault(one.group, {})[rank] = max(one.number, entered.get(one.group, {}).get(rank, 0))
            if not one.done:
                pending.setdefault(one.group, {}).setdefault(rank, one)
    for group, inside in pending.items():
        number = max(one.number for one in inside.values())
        (name, _), *_ = Counter(one.name for one in inside.values() if one.number == number).most_common()
        everybody = members.get(group) or tuple(ranks)
        missing = tuple(rank for rank in everybody if rank in ranks and entered[group].get(rank, 0) < number)
        yield _Wait(name, number, group, everybody, inside, missing)


def _by_stack(facts: RankFacts) -> RankFacts:
    """Without a recorder, or before there is a group: the function of torch.distributed that a rank is in."""
    inside = [frame.function for frame in facts.stack if frame.file.endswith("torch/distributed/distributed_c10d.py")]
    found = (Collective("", 1 if inside else 0, inside[-1] if inside else "", done=not inside),)
    return replace(facts, collectives=found, groups={})


def _computes(facts: RankFacts) -> bool:
    """On a crowded machine one that could run gets little of a CPU."""
    return facts.state == "R" or facts.busy > _BUSY


def _frozen(facts: RankFacts) -> bool:
    """Whether a rank could not tell that it waits."""
    return facts.state in ("T", "t", NO_ANSWER) or (facts.silent_s or 0) > _SILENT_S


def _missing(
    ranks: Mapping[int, RankFacts], waits: Sequence[_Wait], pairs: Mapping[int, Collective], roots: Sequence[int]
) -> Diagnosis:
    told = [wait for wait in waits if set(wait.missing) & set(roots)] or list(waits)
    inside = [(sorted(wait.inside), wait.words()) for wait in told] or [
        ([rank], one.name) for rank, one in pairs.items()
    ]
    absent = {rank for wait in waits for rank in wait.missing}
    parts = [*(_who_waits(*one) for one in inside[:_MOST]), *_described(ranks, roots, absent)]
    waiting = {rank for wait in waits for rank in wait.inside} | pairs.keys()
    return _blame(ranks, roots[0], "; ".join(parts), tuple(sorted(waiting)))


def _different(ranks: Mapping[int, RankFacts], wait: _Wait) -> Diagnosis:
    odd = wait.odd
    usual = sorted(wait.inside.keys() - set(odd))
    parts = [_who_waits(usual, wait.words())] if usual else []
    names = Counter(one.name for one in wait.inside.values())
    for rank in odd[:_MOST]:
        one = wait.inside[rank]
        what = f"{one.name} #{one.number}{f' of {one.shape}' if names[one.name] > 1 else ''}"
        parts.append(
            f"rank {rank} ({ranks[rank].host}) is in {'another one, ' if usual else ''}{what}: {_place(ranks[rank])}"
        )
    return _blame(ranks, odd[0], "; ".join(parts), tuple(usual))


def _stalled(ranks: Mapping[int, RankFacts], waits: Sequence[_Wait], pairs: Mapping[int, Collective]) -> Diagnosis:
    inside = [(sorted(wait.inside), wait.words()) for wait in waits] or [([r], one.name) for r, one in pairs.items()]
    where = "; ".join(_who_waits(*one) for one in inside[:_MOST])
    nobody = "nobody is missing, and it does not end: the network, a driver or a GPU does not deliver"
    waiting = tuple(sorted({rank for some, _ in inside for rank in some}))
    return Diagnosis(f"{where}; {nobody}", waiting=waiting, stalled=True)


def _nobody_waits(facts: Sequence[RankFacts]) -> Diagnosis:
    stuck = [one for one in facts if one.state in ("T", "t", "D", NO_ANSWER)] or list(facts)
    if not stuck:
        return Diagnosis("there are no ranks")
    ranks = {one.rank: one for one in stuck}
    busy = all(one.state in ("R", "S") for one in facts) and any(map(_computes, facts))
    message = "; ".join(["no rank is in a collective", *_described(ranks, list(ranks), ())])
    first = stuck[0]
    return Diagnosis(message, first.rank, first.host, busy=busy)


def _blame(ranks: Mapping[int, RankFacts], rank: int, message: str, waiting: tuple[int, ...]) -> Diagnosis:
    return Diagnosis(message, rank, ranks[rank].host, waiting)


def _who_waits(ranks: Sequence[int], where: str) -> str:
    return f"rank {ranks[0]} waits in {where}" if len(ranks) == 1 else f"ranks {numbers(ranks)} wait in {where}"


def _described(ranks: Mapping[int, RankFacts], which: Sequence[int], absent: Collection[int]) -> Iterator[str]:
    for rank in which[:_MOST]:
        never = " never entered it" if rank in absent else ""
        yield f"rank {rank} ({ranks[rank].host}){never}: {_place(ranks[rank])}"
    if more := which[_MOST:]:
        yield f"likewise {numbers(more)}"


def _place(facts: RankFacts) -> str:
    """Where a rank is, and what it does there."""
    where = _where(facts.stack)
    if facts.state == "":
        return "it has ended"
    if facts.state == NO_ANSWER:
        return "its node does not answer"
    if facts.state in ("T", "t"):
        return f"it is stopped (SIGSTOP, or a debugger){where and f' {where}'}"
    if facts.state == "D":
        channel = f" at {facts.wait_channel}" if facts.wait_channel else ""
        return f"it is blocked in the kernel{channel} (a disk, a driver){where and f' {where}'}"
    how = "busy" if _computes(facts) else "asleep"
    if facts.silent_s is not None and facts.silent_s > _SILENT_S:
        how = f"{how}, and C code holds Python's lock"
    return f"it is {where or 'in code that shows no Python stack'} ({how})"


def _where(stack: Sequence[Frame]) -> str:
    """The innermost place of the user's own code, and what is called there."""
    if not stack:
        return ""
    own = next((frame for frame in stack if not any(part in frame.file for part in _LIBRARIES)), None)
    if own is None or own is stack[0]:
        return f"in {_at(stack[0])}"
    return f"in {_at(own)}, inside {stack[0].function} of {os.path.basename(stack[0].file)}"


def _at(frame: Frame) -> str:
    return f"{frame.function} at {os.path.basename(frame.file)}:{frame.line}"


def numbers(ranks: Iterable[int]) -> str:
    """Ascending numbers in short: 0,2,3 and 5-9."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
