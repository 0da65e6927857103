"""What a node says of itself before its ranks start, as data, and which node is unlike the others: pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median_low
from typing import Any

from launcher.records.probe import FAILED, OK, TOGETHER, RankSeen, bandwidth, judge, number_of
from launcher.records.shared_output import in_pieces, messages

ERROR, WARNING = "error", "warning"
"""An error stops the run, for it would fail or hang; a warning is said, and the run starts."""
CLOCK_TOLERANCE_S = 5.0
"""Nodes whose clocks differ by less are alike: nothing of a training depends on it, only who reads the logs."""

RANKS = "all_reduce"
"""Of the facts, what was seen of the ranks of a first all-reduce."""
Facts = Mapping[str, Mapping[str, Any]]
"""By topic: what was seen, as it was seen."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a node."""

    check: str
    """The stable id of the check."""
    severity: str
    message: str
    """One line: what, where, and what to do."""
    host: str


@dataclass(frozen=True)
class Check:
    """One thing that is looked for."""

    id: str
    what: str
    """What it finds, for the table in the documentation."""
    fix: str
    severities: tuple[str, ...] = (ERROR,)
    """The usual one first."""

    def finding(self, host: str, text: str, severity: str = "") -> Finding:
        """It is there: `text` says what, and where on the host."""
        return Finding(self.id, severity or self.severities[0], " ".join(f"{text}: {self.fix}".split()), host)


@dataclass(frozen=True)
class NodeReport:
    """What the preflight saw on one node."""

    host: str
    facts: Facts = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    """How long it took."""

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == ERROR]

    def to_message(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @staticmethod
    def from_message(data: Mapping[str, Any]) -> NodeReport:
        """Read what :meth:`to_message` made."""
        findings = tuple(Finding(**finding) for finding in data["findings"])
        return NodeReport(data["host"], data["facts"], findings, data["seconds"])


def as_lines(node: int, report: NodeReport) -> list[str]:
    """A report for a standard output that several nodes share."""
    return in_pieces("preflight", str(node), report.to_message())


def from_lines(output: str) -> dict[int, NodeReport]:
    """The reports in such an output, by node, whatever else stands in it; one that is incomplete is left out."""
    found = {int(key): _parsed(message) for key, message in messages("preflight", output) if key.isdigit()}
    return {node: report for node, report in sorted(found.items()) if report is not None}


def _parsed(message: Any) -> NodeReport | None:
    try:
        return NodeReport.from_message(message)
    except (KeyError, TypeError):
        return None


VERSIONS = Check(
    "odd-versions", "another Python, torch, NCCL or launcher than the other nodes",
    "have all nodes use the same environment (cluster.venv, cluster.conda, cluster.container)", (ERROR, WARNING),
)  # fmt: skip
SCRIPT = Check(
    "odd-script", "another content of the task's script than the other nodes",
    "let the code lie on a file system that all nodes share, or take snapshot=git",
)  # fmt: skip
DRIVER = Check(
    "odd-driver", "another NVIDIA driver than the other nodes",
    "tell the administrators, or leave the node out with cluster.exclude", (WARNING,),
)  # fmt: skip
GPUS = Check(
    "odd-gpus", "GPUs of another model or memory than the other nodes", "choose the nodes with cluster.constraint",
    (WARNING,),
)  # fmt: skip
LINKS = Check(
    "odd-links", "other NVLinks or peer access between its GPUs than the other nodes",
    "leave the node out with cluster.exclude and tell the administrators; NCCL may hang or be slow there", (WARNING,),
)  # fmt: skip
CLOCK = Check(
    "clock", "a clock that differs by more than 5 s from the other nodes",
    "have the administrators look after NTP there; until then times in its logs mislead", (WARNING,),
)  # fmt: skip
TORCH = Check(
    "torch", "an interpreter of the ranks that cannot import torch, or whose torch has no CUDA although the run has",
    "install torch as docs/libraries.md says, or give another interpreter with cluster.python or cluster.venv",
)  # fmt: skip
CUDA = Check(
    "cuda", "CUDA that a process of the ranks cannot use, or that computes wrongly",
    "leave the node out with cluster.exclude and tell the administrators, or train on CPUs with cluster.device=cpu",
)  # fmt: skip
ALL_REDUCE = Check(
    "all-reduce", "ranks that fail, hang or add up wrongly in a first all-reduce, before the others do",
    "leave the node out with cluster.exclude and tell the administrators, if it is not the code of another version",
)  # fmt: skip
INTERCONNECT = Check(
    "interconnect", "a first all-reduce that no rank gets through",
    "python -m launcher nccl diagnose, with the same keys, finds the setting that helps, if there is one",
)  # fmt: skip
NO_ANSWER = Check(
    "no-answer", "no answer from the node at all",
    "is it up, does it see the Python and the code of this machine? doctor's last words are on stderr",
)  # fmt: skip
CHECKS = (VERSIONS, SCRIPT, DRIVER, GPUS, LINKS, CLOCK, ALL_REDUCE, INTERCONNECT, NO_ANSWER)


def compare(reports: Sequence[NodeReport], *, at_once: bool = False) -> list[Finding]:
    """What nodes have that most others have not; where two kinds are as frequent, node 0's is the usual one.

    Args:
        reports: of all nodes, node 0 first. What a node could not tell is not held against it.
        at_once: the reports were begun at the same moment, so that their clocks can be compared as they are; else only
            those are that know the leader's time.
    """
    found = [finding for rule in _ALIKE for finding in _odd(reports, *rule)]
    return [*found, *_odd_clocks(reports, "time" if at_once else "offset_s"), *_all_reduce(reports)]


def _version(name: str) -> Callable[[Facts], Any]:
    return lambda facts: facts.get("software", {}).get(name)


def _driver(facts: Facts) -> Any:
    return facts.get("gpus", {}).get("driver")


def _gpus(facts: Facts) -> Any:
    """How many of which, in any order."""
    kinds = Counter((gpu.get("name"), _gib(gpu)) for gpu in facts.get("gpus", {}).get("gpus", []) if "error" not in gpu)
    return ", ".join(sorted(f"{count} × {name} {gib} GiB" for (name, gib), count in kinds.items())) or None


def _gib(gpu: Mapping[str, Any]) -> int:
    return round((gpu.get("memory_total") or 0) / 2**30)


def _links(facts: Facts) -> Any:
    """NVLinks per GPU, and who reaches whom; None where a GPU is missing, which is said elsewhere."""
    gpus = facts.get("gpus", {}).get("gpus", [])
    if not gpus or any("error" in gpu for gpu in gpus):
        return None
    links = " ".join(str(gpu.get("nvlinks")) for gpu in gpus)
    return f"{links} links, peers {' '.join(facts['gpus'].get('peers', []))}"


_ALIKE: tuple[tuple[Check, str, str, Callable[[Facts], Any]], ...] = (
    (VERSIONS, ERROR, "torch", _version("torch")),
    (VERSIONS, ERROR, "NCCL", _version("nccl")),
    (VERSIONS, ERROR, "launcher", _version("launcher")),
    (VERSIONS, WARNING, "Python", _version("python")),
    (SCRIPT, ERROR, "the script's checksum", _version("script")),
    (DRIVER, WARNING, "the driver", _driver),
    (GPUS, WARNING, "GPUs:", _gpus),
    (LINKS, WARNING, "NVLink:", _links),
)


def _odd(
    reports: Sequence[NodeReport], check: Check, severity: str, label: str, read: Callable[[Facts], Any]
) -> Iterator[Finding]:
    known = [(report.host, value) for report in reports if (value := read(report.facts)) is not None]
    if not known:
        return
    ((usual, count),) = Counter(value for _, value in known).most_common(1)
    for host, value in known:
        if value != usual:
            yield check.finding(host, f"{label} {value} here and {usual} on {count} of {len(known)} nodes", severity)


def ranks_of(reports: Sequence[NodeReport]) -> list[RankSeen]:
    """The ranks of the all-reduce, if there was one."""
    return [RankSeen.from_message(seen) for report in reports for seen in report.facts.get(RANKS, {}).get("ranks", ())]


def _all_reduce(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    ranks = ranks_of(reports)
    verdict = judge(ranks)
    if verdict.outcome == OK or any(seen.outcome == FAILED and seen.phase not in TOGETHER for seen in ranks):
        return  # a rank that failed by itself has been named by its node
    if not verdict.culprits:
        text = f"a first all-reduce of {number_of(len(ranks), 'rank')} {verdict.outcome}: {verdict.line}"
        if all(seen.phase in TOGETHER for seen in ranks):
            yield INTERCONNECT.finding(reports[0].host, text)
        else:
            yield TORCH.finding(reports[0].host, f"{text}; watch.probe_seconds=S gives them more time")
    for host in dict.fromkeys(seen.host for seen in ranks if seen.rank in verdict.culprits):
        yield ALL_REDUCE.finding(host, f"in a first all-reduce {verdict.line}")


def all_reduce_line(reports: Sequence[NodeReport]) -> str:
    """How fast the all-reduce was, for a person; empty where there was none, or where it went wrong."""
    ranks = ranks_of(reports)
    speed = bandwidth(ranks)
    if not ranks or judge(ranks).outcome != OK or speed is None:
        return ""
    where, backend = f"{number_of(len(ranks), 'rank')} on {number_of(len(reports), 'node')}", ranks[0].facts["backend"]
    return f"all-reduce over {where} through {backend}: {speed:.3g} GB/s of bus bandwidth"


def _odd_clocks(reports: Sequence[NodeReport], key: str) -> Iterator[Finding]:
    clocks = [(report.host, report.facts.get("clock", {}).get(key)) for report in reports]
    known = [(host, clock) for host, clock in clocks if clock is not None]
    usual = median_low([clock for _, clock in known]) if known else 0.0
    for host, clock in known:
        if abs(clock - usual) > CLOCK_TOLERANCE_S:
            yield CLOCK.finding(host, f"the clock is {clock - usual:+.0f} s off those of the other nodes")
