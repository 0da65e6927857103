"""A batch job of Slurm in its parts, whoever writes its script: submitit, or one of our templates."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.plan.plan import Plan
from launcher.records.rundir import RunDir


@dataclass(frozen=True)
class BatchJob:
    """What sbatch is told, what the batch shell does first, and the step with an agent on every node."""

    directives: dict[str, Any]
    setup: tuple[str, ...]
    """Lines of shell, run in the directory of the submission."""
    code: Path
    """To be put on PYTHONPATH: the nodes' launcher."""
    srun_args: tuple[str, ...]
    agent: tuple[str, ...]
    """The agent's command line, the same on every node."""


def batch_job(plan: Plan) -> BatchJob:
    """The job of one run."""
    run = RunDir(Path(plan.run_dir))
    return BatchJob(
        directives={**plan.directives, "output": pattern(run.slurm, "%j_batch.out")},
        setup=(f"cd {shlex.quote(plan.submit_dir)} || exit 1", *plan.setup) if plan.setup else (),
        code=run.code,
        srun_args=(f"--chdir={run.slurm}", "--output=%j_%t_log.out", *step_args(plan)),
        agent=tuple(agent_command(run.path)),
    )


def agent_command(records: Path) -> list[str]:
    """The agent's command line, in the interpreter of this process."""
    return [sys.executable, "-u", "-m", "launcher.node", str(records)]


def step_args(plan: Plan) -> Sequence[str]:
    """Arguments of the step that holds the agents.

    Since 22.05 srun does not take --cpus-per-task from sbatch, and the ranks inherit the task's CPU mask; without
    --kill-on-bad-exit a dead node would leave the others running.
    """
    cpus = plan.resources.cpus_per_node
    return ["--kill-on-bad-exit=1", *([f"--cpus-per-task={cpus}"] if cpus else []), *plan.srun_args]


def pattern(directory: Path, name: str) -> str:
    """A file name pattern of sbatch's in a directory whose own name is none.

    Where a path holds a backslash, Slurm fills in nothing and takes single backslashes out; so there the file goes
    without the job's id. srun can do better: it fills in nothing of its --chdir.
    """
    if "\\" in str(directory):
        return str(directory).replace("\\", "\\\\") + "/" + re.sub("%._", "", name)
    return f"{str(directory).replace('%', '%%')}/{name}"
