"""``doctor``: what is wrong with this machine, or with nodes of a cluster, before a run finds out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

from launcher.cli.arguments import read
from launcher.cli.help import help_of
from launcher.cli.start import composed_of
from launcher.cli.table import table
from launcher.errors import LauncherError
from launcher.plan.plan import Plan
from launcher.records.preflight import ERROR, NO_ANSWER, WARNING, Finding, NodeReport, compare, from_lines
from launcher.records.preflight import all_reduce_line as speed_of
from launcher.slurm.step import run_on_nodes
from launcher.submission.on_nodes import environment_here, script_for
from launcher.submission.prepare import plan_here
from launcher.submission.slurm import require_slurm

_SLACK_S = 20.0
"""For the start of the program on this machine, and its end."""


def doctor(argv: Sequence[str]) -> int:
    """``doctor [--full] [--json] [KEY=VALUE ...]``: the preflight of such a run, here or on nodes of Slurm's."""
    arguments = read(argv, verb="doctor")
    if arguments.help:
        print(help_of("doctor"))
        return 0
    arguments.overrides.append("snapshot=off")  # there is no run whose copy of the code could be looked at
    if arguments.full:
        arguments.overrides.append("watch.preflight=full")
    config = composed_of(arguments).config
    plan, budget_s = plan_here(config), config.watch.preflight_seconds
    reports, findings = _on_nodes(plan, budget_s) if plan.scheduler == "slurm" else (_here(plan, budget_s), [])
    findings = [*findings, *(one for report in reports for one in report.findings), *compare(reports, at_once=True)]
    print(_as_json(reports, findings) if arguments.json else _as_text(reports, findings))
    return int(any(finding.severity == ERROR for finding in findings))


def _command(budget_s: int) -> list[str]:
    return [sys.executable, "-m", "launcher.node.preflight", str(budget_s)]


def _here(plan: Plan, budget_s: int) -> list[NodeReport]:
    limit_s = budget_s + plan.budgets.probe_s + _SLACK_S
    try:
        done = subprocess.run(
            _command(budget_s), input=plan.to_json(), env=environment_here(), timeout=limit_s, capture_output=True,
            text=True, errors="replace", check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise LauncherError(f"the checks did not end within {error.timeout:.0f} s: this machine hangs") from error
    if not (reports := from_lines(done.stdout)):
        raise LauncherError(f"the checks failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return list(reports.values())


def _on_nodes(plan: Plan, budget_s: int) -> tuple[list[NodeReport], list[Finding]]:
    """The reports of the nodes of a short job, and what is to be said of those without."""
    require_slurm()
    nodes = plan.resources.nodes
    print(f"asking {nodes} node{'s' if nodes > 1 else ''} through Slurm …", file=sys.stderr, flush=True)
    script = script_for(plan, _command(budget_s))
    minutes = 2 + int((budget_s + plan.budgets.probe_s) // 60)
    output, words = run_on_nodes(plan.directives, nodes, plan.srun_args, script, plan.to_json(), minutes)
    reports = from_lines(output)
    silent = [f"node {node}" for node in range(nodes) if node not in reports]
    return list(reports.values()), [NO_ANSWER.finding(name, words or "it said nothing") for name in silent]


def _as_json(reports: Sequence[NodeReport], findings: Sequence[Finding]) -> str:
    nodes = [report.to_message() for report in reports]
    said = {"findings": [vars(finding) for finding in findings], "all_reduce": speed_of(reports)}
    return json.dumps({"nodes": nodes, **said}, indent=2)


def _as_text(reports: Sequence[NodeReport], findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    seconds = max((report.seconds for report in reports), default=0.0)
    rows = [(one.host, one.check, one.severity, one.message) for one in sorted(findings, key=_errors_first)]
    said = [table(("NODE", "CHECK", "SEVERITY", "MESSAGE"), rows), ""] if rows else []
    looked = f"looked at {', '.join(report.host for report in reports) or 'no node'} in {seconds:.1f} s"
    said += filter(None, [speed_of(reports)])
    return "\n".join([*said, f"{looked}: {_number(counts[ERROR], ERROR)}, {_number(counts[WARNING], WARNING)}"])


def _errors_first(finding: Finding) -> bool:
    return finding.severity != ERROR


def _number(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
