"""What a diagnosis found, for a person, for programs, and for the profile: pure functions."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from launcher.config.nccl import BY_KEY
from launcher.diagnose.remedies import Remedy, words_of
from launcher.diagnose.search import Cost, Diagnosis, Names, Trial, Trouble
from launcher.diagnose.shapes import describe
from launcher.records.preflight import NodeReport
from launcher.records.probe import number_of

_WIDTH = 110
_MOST_WORDS = 5
"""Lines; report.json has all of them."""


@dataclass(frozen=True)
class Findings:
    """All that a report is made of."""

    cluster: str
    """The profile's name."""
    when: str
    backend: str
    hosts: Sequence[str]
    nodes: Sequence[NodeReport]
    in_force: Names
    """The entries that the profile and the command line had in force."""
    offered: Mapping[str, Remedy]
    diagnosis: Diagnosis

    def at(self, trial: Trial) -> str:
        """The group of ranks of a test, in words."""
        return describe(trial.shape, self.hosts)


def as_json(found: Findings) -> dict[str, Any]:
    """Everything that was seen."""
    diagnosis = found.diagnosis
    return {
        "cluster": found.cluster,
        "time": found.when,
        "backend": found.backend,
        "hosts": list(found.hosts),
        "healthy": diagnosis.healthy,
        "unfinished": diagnosis.unfinished,
        "in_force": list(found.in_force),
        "cures": list(diagnosis.cures),
        "troubles": [_trouble(found, trouble) for trouble in diagnosis.troubles],
        "trials": [_trial(found, trial) for trial in diagnosis.trials],
        "nodes": [report.to_message() for report in found.nodes],
    }


def _trouble(found: Findings, trouble: Trouble) -> dict[str, Any]:
    cost = trouble.cost
    return {
        "at": found.at(trouble.first),
        "world_size": sum(trouble.first.shape),
        "outcome": trouble.first.verdict.outcome,
        "what": trouble.first.verdict.line,
        "cure": list(trouble.cure),
        "env": _env(found, trouble.cure),
        "proven": trouble.proven,
        "comes_and_goes": trouble.comes_and_goes,
        "searched": trouble.searched,
        "cost": None if cost is None else {**asdict(cost), "ratio": cost.ratio},
    }


def _trial(found: Findings, trial: Trial) -> dict[str, Any]:
    return {
        "at": found.at(trial),
        "shape": list(trial.shape),
        "world_size": sum(trial.shape),
        "with": list(trial.names),
        "env": _env(found, trial.names),
        "why": trial.why,
        "outcome": trial.verdict.outcome,
        "what": trial.verdict.line,
        "culprits": list(trial.verdict.culprits),
        "seconds": trial.seconds,
        "busbw": trial.busbw,
        "ranks": [seen.to_message() for seen in trial.ranks],
    }


def _env(found: Findings, names: Names) -> dict[str, str]:
    return {variable: value for name in names for variable, value in found.offered[name].entry.env.items()}


def line_of(trial: Trial, hosts: Sequence[str]) -> str:
    """One test in one line, to be said when it has ended."""
    settings = f" with {' and '.join(trial.names)}" if trial.names else ""
    why = f" ({trial.why})" if trial.why else ""
    speed = f", {_speed(trial.busbw)}" if trial.busbw else ""
    bad = f"{trial.verdict.outcome.upper()}: {trial.verdict.line}"
    result = f"ok{speed}, {trial.seconds:.1f} s" if trial.works else bad
    return f"{describe(trial.shape, hosts)}{settings}{why}: {result}"


def _speed(busbw: float) -> str:
    return f"{busbw:.3g} GB/s"


def as_text(found: Findings) -> str:
    """The readable report."""
    parts = [_head(found), *(_story(found, trouble) for trouble in found.diagnosis.troubles), _conclusion(found)]
    tests = [line_of(trial, found.hosts) for trial in found.diagnosis.trials]
    parts += ["tests, in the order in which they were made\n" + "\n".join(f"  {line}" for line in tests)]
    parts += ["topology\n" + "\n".join(_topology(found.nodes))]
    return "\n\n".join(parts) + "\n"


def _head(found: Findings) -> str:
    settings = f", with {', '.join(found.in_force)} in force" if found.in_force else ""
    return (
        f"all-reduce tests on {found.cluster} ({', '.join(found.hosts)}), {found.when}, backend {found.backend}"
        f"{settings}\nbandwidths are bus bandwidths as nccl-tests defines them, of the slowest rank"
    )


def _story(found: Findings, trouble: Trouble) -> str:
    lines = [f"{found.at(trouble.first)}: {trouble.first.verdict.line}", *_outcome(found, trouble)]
    return "\n".join(_wrapped(lines[0]) + [f"  {part}" for line in lines[1:] for part in _wrapped(line)])


def _outcome(found: Findings, trouble: Trouble) -> Iterator[str]:
    if trouble.proven:
        assert trouble.returned is not None
        settings = " and ".join(f"{name} ({_sets(found, name)})" for name in trouble.cure)
        yield f"cured by {settings}; without it fails again ({trouble.returned.verdict.outcome}), with it works again"
        yield from (f"{name}: {found.offered[name].entry.symptom}" for name in trouble.cure)
        yield f"its cost: {_cost(found, trouble.cost)}"
    elif trouble.comes_and_goes:
        yield "it comes and goes: tried again it was otherwise, so no setting is proven to cure it"
    elif trouble.searched:
        yield "no entry of the catalogue, alone or together, cures it"
    elif sum(trouble.first.shape) == 1:
        yield "it fails alone: this is no matter of NCCL's settings, and nothing else was tried"
    else:
        yield "nothing was tried against it: the search before, for the same kind of group, was in vain"
    if words := words_of(trouble.first)[-_MOST_WORDS:]:
        yield "the ranks said:"
        yield from (f"  {line}" for line in words)


def _cost(found: Findings, cost: Cost | None) -> str:
    if cost is None:
        return "not known, for no group of ranks works with it and without"
    speeds = f"{_speed(cost.with_them)} instead of {_speed(cost.without)}"
    return f"{cost.ratio:.2f} of the bandwidth, {speeds} with {describe(cost.shape, found.hosts)}"


def _sets(found: Findings, name: str) -> str:
    return " ".join(f"{variable}={value}" for variable, value in found.offered[name].entry.env.items())


def _conclusion(found: Findings) -> str:
    diagnosis = found.diagnosis
    if diagnosis.unfinished:
        return diagnosis.unfinished
    if diagnosis.healthy:
        return f"healthy: {number_of(len(diagnosis.trials), 'test')}, all sums right, nothing hung"
    bad = [trouble for trouble in diagnosis.troubles if not trouble.proven]
    cured = f"{number_of(len(diagnosis.troubles) - len(bad), 'trouble')} cured"
    left = f", {len(bad)} not" if bad else ": put the lines of profile.yaml into the cluster's profile"
    return f"{cured}{left}"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [""]


def profile_lines(found: Findings) -> str:
    """Lines of YAML for the cluster's profile, each with its reason; only what is proven to be needed."""
    cures = found.diagnosis.cures
    head = f"# For conf/cluster/{found.cluster}.yaml, from `python -m launcher nccl diagnose` of {found.when}."
    if not cures:
        return (
            f"{head}\n# Nothing is proven to be needed{'' if found.diagnosis.healthy else ', and not all is well'}.\n"
        )
    lines = [head]
    for name in cures:
        if found.offered[name].key:
            lines += [*_reasons(found, name, ""), f"{found.offered[name].key}: {json.dumps(found.offered[name].value)}"]
    listed = [name for name in cures if not found.offered[name].key]
    if listed:
        lines.append("nccl:")
        lines += [f"  - {name}  # in force before" for name in found.in_force if name not in BY_KEY]
        for name in listed:
            lines += [*_reasons(found, name, "  "), f"  - {name}"]
    return "\n".join(lines) + "\n"


def _reasons(found: Findings, name: str, indent: str) -> list[str]:
    (trouble, *_) = (one for one in found.diagnosis.troubles if one.proven and name in one.cure)
    beside = [other for other in trouble.cure if other != name]
    together = f" (together with {', '.join(beside)})" if beside else ""
    text = (
        f"{found.at(trouble.first)}: {trouble.first.verdict.line}. With {_sets(found, name)}{together} it works,"
        f" without it failed again. Cost: {found.offered[name].entry.cost}; measured: {_cost(found, trouble.cost)}."
    )
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _topology(nodes: Sequence[NodeReport]) -> Iterator[str]:
    for report in nodes:
        yield f"  {report.host}"
        yield from (f"    {line}" for line in [*_gpus(report), *_interfaces(report), *_ports(report)])


def _gpus(report: NodeReport) -> Iterator[str]:
    """The matrix of ``nvidia-smi topo -m``."""
    seen = report.facts.get("gpus", {})
    if not seen.get("gpus"):
        yield f"GPUs: {seen.get('message') or seen.get('state') or 'unknown'}"
        return
    names = [f"GPU{gpu['index']}" for gpu in seen["gpus"]]
    width = max(map(len, names)) + 2
    yield "".join(text.ljust(width) for text in ["", *names]).rstrip()
    for index, row in enumerate(seen.get("paths", [])):
        cells = ["X" if column == index else cell for column, cell in enumerate(row)]
        yield "".join(text.ljust(width) for text in [names[index], *cells]).rstrip()
    yield from (f"{name}: {gpu.get('name') or gpu.get('error')}" for name, gpu in zip(names, seen["gpus"]))


def _interfaces(report: NodeReport) -> Iterator[str]:
    for name, link in report.facts.get("interfaces", {}).get("links", {}).items():
        speed = "" if link["mbit_s"] is None else f", {link['mbit_s']} Mbit/s"
        yield f"{name}: {link['state'] or 'unknown'}{speed}, packets of {link['mtu']} bytes"


def _ports(report: NodeReport) -> Iterator[str]:
    for name, port in report.facts.get("interfaces", {}).get("ports", {}).items():
        yield f"{name}: {port['layer']}, {port['state']}, {port['rate']}, NUMA node {port['numa']}"
