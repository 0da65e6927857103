"""From failures to the smallest set of settings that cures them, with the proof; the cluster is a function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from launcher.diagnose.shapes import Shape
from launcher.records.probe import OK, RankSeen, Verdict, bandwidth

Names = tuple[str, ...]
"""Of settings that are tried together."""


@dataclass(frozen=True)
class Trial:
    """One all-reduce test."""

    shape: Shape
    names: Names
    """The settings that were in force besides the profile's."""
    verdict: Verdict
    seconds: float = 0.0
    ranks: tuple[RankSeen, ...] = ()
    why: str = ""
    """What it was for."""

    @property
    def works(self) -> bool:
        return self.verdict.outcome == OK

    @property
    def busbw(self) -> float | None:
        """10^9 bytes a second, at the largest size."""
        return bandwidth(self.ranks)


class Stopped(Exception):
    """No further test is possible; says why."""


Run = Callable[[Shape, Names, str], Trial]
"""Tries a group of ranks with settings, and says why. Raises Stopped."""


@dataclass(frozen=True)
class Cost:
    """What settings cost where it works with them and without."""

    shape: Shape
    without: float
    """Bus bandwidth, 10^9 bytes a second."""
    with_them: float

    @property
    def ratio(self) -> float:
        return self.with_them / self.without


@dataclass(frozen=True)
class Trouble:
    """A group of ranks that does not work, and what came of the search."""

    first: Trial
    cure: Names = ()
    """The smallest set that cures it; empty where none was found, or where it comes and goes."""
    returned: Trial | None = None
    """The same without the cure once more: it fails again, or the cure proves nothing."""
    again: Trial | None = None
    """With the cure once more."""
    cost: Cost | None = None
    searched: bool = True
    """False where an earlier search for the like was in vain."""

    @property
    def proven(self) -> bool:
        """It works with the cure, not without, and again with it."""
        return bool(self.cure and self.returned and not self.returned.works and self.again and self.again.works)

    @property
    def comes_and_goes(self) -> bool:
        return self.returned is not None and (self.returned.works or not (self.again and self.again.works))


@dataclass
class Diagnosis:
    """What was tried, and what was found."""

    trials: list[Trial] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    unfinished: str = ""
    """Why not everything was tried that should have been; empty where it was."""

    @property
    def healthy(self) -> bool:
        return not self.unfinished and not self.troubles

    @property
    def cures(self) -> Names:
        """All settings that are proven to be needed."""
        return tuple(dict.fromkeys(name for trouble in self.troubles if trouble.proven for name in trouble.cure))


def smallest_cure(candidates: Sequence[str], works: Callable[[Names], bool], fit: Callable[[Names], bool]) -> Names:
    """The smallest set of candidates with which it works; empty if none does.

    Each alone, in their order. Then all that fit together, less one after the other what is not needed; what is left is
    the smallest set if it has two members. Else all pairs, for the rest may have broken what a pair cures.

    Args:
        candidates: the likeliest first.
        works: tries a set.
        fit: whether the members of a set do not contradict each other.
    """
    for name in candidates:
        if fit((name,)) and works((name,)):
            return (name,)
    left = _reduced(candidates, works, fit)
    if len(left) == 2:
        return left
    pair = next((pair for pair in itertools.combinations(candidates, 2) if fit(pair) and works(pair)), ())
    return pair or left


def _reduced(candidates: Sequence[str], works: Callable[[Names], bool], fit: Callable[[Names], bool]) -> Names:
    """As many as fit together, less what is not needed; empty where they do not work."""
    everything: Names = ()
    for name in candidates:
        if fit((*everything, name)):
            everything = (*everything, name)
    if len(everything) < 2 or not works(everything):
        return ()
    left = everything
    for name in reversed(everything):  # the likeliest are kept the longest
        fewer = tuple(other for other in left if other != name)
        if len(fewer) > 1 and works(fewer):  # none alone does
            left = fewer
    return left


def diagnose(
    shapes: Sequence[Shape], candidates: Callable[[Trial], Sequence[str]], fit: Callable[[Names], bool], run: Run
) -> Diagnosis:
    """Try all groups; where one fails, look for a cure, prove it both ways, and measure what it costs.

    What is proven stays in force for the groups that follow. A rank that fails alone is the end: it fails of itself.

    Args:
        shapes: the groups, the simplest first.
        candidates: the settings to try against a failure, the likeliest first.
        fit: whether settings do not contradict each other.
        run: runs one test.
    """
    found = Diagnosis()

    def tried(shape: Shape, names: Names, why: str) -> Trial:
        trial = run(shape, names, why)
        found.trials.append(trial)
        return trial

    try:
        for shape in shapes:
            first = tried(shape, found.cures, "")
            if first.works:
                continue
            found.troubles.append(Trouble(first, searched=False))
            if sum(shape) == 1:
                return found
            if _worth_a_search(found.troubles, first):
                found.troubles[-1] = _searched(first, candidates(first), fit, tried)
        found.troubles = [_priced(trouble, found.trials, tried) for trouble in found.troubles]
    except Stopped as why:
        found.unfinished = str(why)
    return found


def _worth_a_search(troubles: Sequence[Trouble], first: Trial) -> bool:
    """Not again where the same kind of group has no known cure: each try may take a whole deadline."""
    in_vain = [one for one in troubles[:-1] if not one.proven]
    return not any(_is_across(one.first.shape) == _is_across(first.shape) for one in in_vain)


def _is_across(shape: Shape) -> bool:
    return sum(count > 0 for count in shape) > 1


def _searched(
    first: Trial, candidates: Sequence[str], fit: Callable[[Names], bool], run: Callable[[Shape, Names, str], Trial]
) -> Trouble:
    shape, base = first.shape, first.names
    offered = [name for name in candidates if name not in base]
    cure = smallest_cure(
        offered,
        lambda names: run(shape, (*base, *names), "as a cure").works,
        lambda names: fit((*base, *names)),
    )
    if not cure:
        return Trouble(first)
    returned = run(shape, base, "does it fail again without?")
    if returned.works:
        return Trouble(first, cure, returned)
    return Trouble(first, cure, returned, run(shape, (*base, *cure), "and does it work again with it?"))


def _priced(trouble: Trouble, trials: Sequence[Trial], run: Callable[[Shape, Names, str], Trial]) -> Trouble:
    """With the cost at the largest group that works both ways, as far as that is known or one more test tells."""
    if not trouble.proven:
        return trouble
    base = trouble.first.names
    without = _best(trials, base)
    for shape in sorted(without, key=sum, reverse=True):
        trial = run(shape, (*base, *trouble.cure), "what does it cost?")
        if trial.works and trial.busbw:
            return replace(trouble, cost=Cost(shape, without[shape], trial.busbw))
    with_them = _best(trials, (*base, *trouble.cure))
    for shape in sorted({*with_them} - {trouble.first.shape}, key=sum, reverse=True)[:1]:
        trial = run(shape, base, "what would it be without?")
        if trial.works and trial.busbw:
            return replace(trouble, cost=Cost(shape, trial.busbw, with_them[shape]))
    return trouble


def _best(trials: Sequence[Trial], names: Names) -> Mapping[Shape, float]:
    """The best bandwidth of each group that worked with exactly these settings."""
    return dict(sorted(_bandwidths(trials, names), key=lambda pair: pair[1]))


def _bandwidths(trials: Sequence[Trial], names: Names) -> Iterator[tuple[Shape, float]]:
    for trial in trials:
        if trial.works and trial.names == names and trial.busbw:
            yield trial.shape, trial.busbw
