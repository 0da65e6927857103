"""``doctor``: what is wrong with this machine, or with nodes of a cluster, before a run finds out."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import launcher
from launcher.cli.arguments import read
from launcher.cli.help import help_text
from launcher.cli.start import composed_of
from launcher.cli.table import table
from launcher.errors import LauncherError
from launcher.plan.plan import Plan
from launcher.records.preflight import ERROR, NO_ANSWER, WARNING, Finding, NodeReport, compare, from_lines
from launcher.slurm.step import run_on_nodes
from launcher.submit.prepare import plan_here
from launcher.submit.slurm import require_slurm

_SLACK_S = 20.0
"""For the start of the program on this machine, and its end."""


def doctor(argv: Sequence[str]) -> int:
    """``doctor [--json] [KEY=VALUE ...]``: the preflight of such a run, here or on nodes that Slurm chooses."""
    arguments = read(argv, verb="doctor")
    if arguments.help:
        print(help_text(arguments.config_dirs))
        return 0
    arguments.overrides.append("snapshot=off")  # there is no run whose copy of the code could be looked at
    config = composed_of(arguments).config
    plan, budget_s = plan_here(config), config.watch.preflight_seconds
    reports, findings = _on_nodes(plan, budget_s) if plan.scheduler == "slurm" else (_here(plan, budget_s), [])
    findings = [*findings, *(one for report in reports for one in report.findings), *compare(reports, at_once=True)]
    print(_as_json(reports, findings) if arguments.json else _as_text(reports, findings))
    return int(any(finding.severity == ERROR for finding in findings))


_PACKAGE = Path(launcher.__file__).resolve().parents[1]
"""What has to be on PYTHONPATH."""


def _command(budget_s: int) -> list[str]:
    return [sys.executable, "-m", "launcher.node.preflight", str(budget_s)]


def _here(plan: Plan, budget_s: int) -> list[NodeReport]:
    environment = {**os.environ, "PYTHONPATH": f"{_PACKAGE}:{os.environ.get('PYTHONPATH', '')}"}
    try:
        done = subprocess.run(
            _command(budget_s), input=plan.to_json(), env=environment, timeout=budget_s + _SLACK_S,
            capture_output=True, text=True, errors="replace", check=False,
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
    output, words = run_on_nodes(plan.directives, nodes, plan.srun_args, _script(plan, budget_s), plan.to_json())
    reports = from_lines(output)
    silent = [f"node {node}" for node in range(nodes) if node not in reports]
    return list(reports.values()), [NO_ANSWER.finding(name, words or "it said nothing") for name in silent]


def _script(plan: Plan, budget_s: int) -> str:
    """As in the batch script: the setup decides what the ranks find. It must not read the plan, nor answer for us."""
    setup = ["{", ":", *plan.setup, "} </dev/null >&2"]
    path = f"export PYTHONPATH={shlex.quote(str(_PACKAGE))}${{PYTHONPATH:+:$PYTHONPATH}}"
    return "\n".join(
        [f"cd {shlex.quote(plan.submit_dir)} || exit", *setup, path, f"exec {shlex.join(_command(budget_s))}"]
    )


def _as_json(reports: Sequence[NodeReport], findings: Sequence[Finding]) -> str:
    nodes = [report.to_message() for report in reports]
    return json.dumps({"nodes": nodes, "findings": [vars(finding) for finding in findings]}, indent=2)


def _as_text(reports: Sequence[NodeReport], findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    seconds = max((report.seconds for report in reports), default=0.0)
    rows = [(one.host, one.check, one.severity, one.message) for one in sorted(findings, key=_errors_first)]
    said = [table(("NODE", "CHECK", "SEVERITY", "MESSAGE"), rows), ""] if rows else []
    looked = f"looked at {', '.join(report.host for report in reports) or 'no node'} in {seconds:.1f} s"
    return "\n".join([*said, f"{looked}: {_number(counts[ERROR], ERROR)}, {_number(counts[WARNING], WARNING)}"])


def _errors_first(finding: Finding) -> bool:
    return finding.severity != ERROR


def _number(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"
