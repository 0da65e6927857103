"""The ranks of a plan without the launcher, as a careful person starts them: what ``bench overhead`` compares with."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.plan.plan import Plan
from launcher.slurm.directives import as_header
from launcher.submission.batch_job import pattern

_PORTS = "$((20000 + SLURM_JOB_ID % 10000))"


def plain_job(plan: Plan, entry: Sequence[str], folder: Path) -> str:
    """A script for sbatch: the plan's directives, setup and environment, and torchrun on every node.

    Args:
        plan: with its setup.
        entry: the script and its arguments.
        folder: where the job prints to.
    """
    resources = plan.resources
    width = [f"--cpus-per-task={resources.cpus_per_node}"] if resources.cpus_per_node else []
    torchrun = [plan.python, "-m", "torch.distributed.run", f"--nnodes={resources.nodes}",
                f"--nproc-per-node={resources.nproc_per_node}"]  # fmt: skip
    meet = f'--node-rank="$SLURM_NODEID" --master-addr="$MASTER" --master-port={_PORTS}'
    on_node = f"exec {shlex.join(torchrun)} {meet} {shlex.join(entry)}"
    directives = {**plan.directives, "output": pattern(folder, "%j_by_hand.out")}
    lines = [
        "#!/bin/bash",
        *as_header(directives),
        f"cd {shlex.quote(plan.submit_dir)} || exit",
        *plan.setup,
        *(f"export {name}={shlex.quote(value)}" for name, value in _environment(plan, folder).items()),
        'export MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"exec {shlex.join(['srun', *width, *plan.srun_args, 'bash', '-c', on_node])}",
    ]
    return "\n".join(lines) + "\n"


def plain_here(plan: Plan, entry: Sequence[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command that starts the ranks on this machine, and its environment."""
    count = f"--nproc-per-node={plan.resources.nproc_per_node}"
    command = [plan.python, "-m", "torch.distributed.run", "--standalone", count, *entry]
    return command, {**os.environ, **_environment(plan, folder)}


def _environment(plan: Plan, folder: Path) -> dict[str, str]:
    """Without what only the launcher's own code reads."""
    values = plan.values(str(folder))
    return {name: value for name, value in values.items() if not name.startswith("LAUNCHER_")}
