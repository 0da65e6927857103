"""The settings that are tried: the catalogue's entries, and those whose value only the nodes can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.config.catalogue import matches
from launcher.config.nccl import BY_KEY, problems
from launcher.config.schema import Workaround
from launcher.diagnose.search import Names, Trial
from launcher.records.preflight import NodeReport
from launcher.records.probe import HUNG
from launcher.slurm.probe import MADE_BY_SOFTWARE


@dataclass(frozen=True)
class Remedy:
    """A setting as it is tried, and as the profile has it."""

    entry: Workaround
    key: str = ""
    """The key of the profile that brings it, and its value; empty for an entry that is listed by its name."""
    value: str = ""


def remedies(
    entries: Mapping[str, Workaround], in_force: Mapping[str, Workaround], reports: Sequence[NodeReport]
) -> dict[str, Remedy]:
    """By name: what may be tried besides what is in force. What changes only the log is no cure."""
    singles = {name: entry for name, entry in entries.items() if not entry.bundle and not entry.log_files}
    listed = {name: Remedy(entry) for name, entry in singles.items() if name not in BY_KEY and name not in in_force}
    by_key = {name: singles[name] for name in BY_KEY if name in singles and name not in in_force}
    return {**listed, **dict(_with_values(by_key, reports))}


def _with_values(by_key: Mapping[str, Workaround], reports: Sequence[NodeReport]) -> Iterator[tuple[str, Remedy]]:
    """One remedy for each interface, or each adapter, that all nodes have and that is not the only one."""
    found = {"network_interface": _common(reports, "interfaces"), "ib_hca": _common(reports, "adapters")}
    for name, entry in by_key.items():
        key = BY_KEY[name]
        for value in found[key]:
            env = {variable: text.replace(f"${{cluster.{key}}}", value) for variable, text in entry.env.items()}
            yield f"{name}={value}", Remedy(replace(entry, env=env), key, value)


def _common(reports: Sequence[NodeReport], what: str) -> list[str]:
    """What all nodes have; nothing where each has one only, for then there is nothing to choose."""
    lists = [_usable(report.facts.get("interfaces", {}), what) for report in reports]
    if not lists or all(len(names) < 2 for names in lists):
        return []
    return [name for name in lists[0] if all(name in names for names in lists)]


def _usable(facts: Mapping[str, Any], what: str) -> list[str]:
    """Those that may lead to another node, and are not down."""
    links = facts.get("links", {})
    there = [name for name in facts.get(what, []) if not name.startswith(MADE_BY_SOFTWARE)]
    return [name for name in there if links.get(name, {}).get("state") != "down"]


def in_order(offered: Mapping[str, Remedy], trial: Trial) -> list[str]:
    """The names: first those that fit what the ranks of a failed test said, the best first, then the others."""
    entries = {name: remedy.entry for name, remedy in offered.items()}
    words = [*words_of(trial)]
    if trial.verdict.outcome == HUNG and any(seen.phase == "all_reduce" for seen in trial.ranks):
        words.append("hang in the first all_reduce")  # as people search for it
    fitting = [match.name for match in matches("\n".join(words), entries)]
    return [*fitting, *(name for name in offered if name not in fitting)]


def words_of(trial: Trial) -> list[str]:
    """The lines that the ranks of a failed test said, each once."""
    said = [text for seen in trial.ranks for text in (seen.text, seen.error)]
    return list(dict.fromkeys(line.strip() for text in said for line in text.splitlines() if line.strip()))


def fit_together(offered: Mapping[str, Remedy], in_force: Mapping[str, Workaround]) -> Callable[[Names], bool]:
    """Whether settings contradict neither each other nor what is in force."""

    def fit(names: Names) -> bool:
        chosen = {name: offered[name].entry for name in names}
        return not any(True for _ in problems({**in_force, **chosen}))

    return fit
