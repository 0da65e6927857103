"""A run on hosts without a scheduler: one command for each of them, started by a person."""

from __future__ import annotations

import shlex

from launcher.plan.plan import Plan
from launcher.records.files import write_atomic, write_json
from launcher.records.rundir import RunDir
from launcher.submission.batch_job import batch_job
from launcher.submission.script import NODE, script


def write_commands(plan: Plan, run: RunDir) -> list[str]:
    """Write the script that starts this run on a host; returns each host's command, in the order of the hosts.

    The command carries the number of its host and the way to the run, and that is all: which hosts there are is in the
    plan, and what tells this start from a later one is made up by node 0 when it starts.
    """
    write_atomic(run.commands, script(plan, batch_job(plan), NODE))
    write_json(run.submission, {"scheduler": "none", "hosts": list(plan.hosts)})
    return [shlex.join(["bash", str(run.commands), str(node)]) for node in range(len(plan.hosts))]
