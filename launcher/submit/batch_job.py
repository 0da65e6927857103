"""A batch job of Slurm in its parts, whoever writes its script: submitit, or one of our templates."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import UserError
from launcher.plan.container import srun_args
from launcher.plan.plan import Plan
from launcher.records.rundir import RunDir


@dataclass(frozen=True)
class BatchJob:
    """What sbatch is told, what the batch shell does first, and the step with an agent on every node."""

    directives: dict[str, Any]
    workdir: Path
    """Where the setup begins, whatever the directory of the submission."""
    setup: tuple[str, ...]
    """Lines of shell."""
    code: Path
    """To be put on PYTHONPATH: the nodes' launcher."""
    srun_args: tuple[str, ...]
    container_args: tuple[str, ...]
    """Of srun, too: has the whole task start in an image. Empty where the node agent sees to the container."""
    agent: tuple[str, ...]
    """The agent's command line, the same on every node."""
    plan_file: Path
    """Where all that the job does is written down."""


def batch_job(plan: Plan) -> BatchJob:
    """The job of one run."""
    run = RunDir(Path(plan.run_dir))
    return BatchJob(
        directives={**plan.directives, "output": pattern(run.slurm, "%j_batch.out")},
        workdir=Path(plan.workdir),
        setup=plan.setup,
        code=run.code,
        srun_args=(f"--output={pattern(run.slurm, '%j_%t_log.out')}", *step_args(plan)),
        container_args=tuple(srun_args(plan)),
        agent=tuple(agent_command(run.path, agents_python(plan))),
        plan_file=run.plan,
    )


def require_carriable(plan: Plan) -> None:
    """Refuse a run directory that cannot stand in an option of sbatch.

    Raises:
        UserError: Slurm would read its name as a pattern, or as the end of the option.
    """
    if "\\" in plan.run_dir:
        raise UserError(f"runs_dir: a \\ in the path of its output makes Slurm lose the job's id: '{plan.run_dir}'")
    if not plan.run_dir.isprintable():
        raise UserError(f"runs_dir: a line break or the like in its path ends an #SBATCH line: {plan.run_dir!r}")


def agent_command(records: Path, python: str = sys.executable) -> list[str]:
    """The agent's command line, by default in the interpreter of this process."""
    return [python, "-u", "-m", "launcher.node", str(records)]


def agents_python(plan: Plan) -> str:
    """The agent's interpreter: this one, or the image's where the agent starts in an image."""
    return plan.python if srun_args(plan) else sys.executable


def step_args(plan: Plan) -> Sequence[str]:
    """Arguments of the step that holds the agents.

    Since 22.05 srun does not take --cpus-per-task from sbatch, and the ranks inherit the task's CPU mask; without
    --kill-on-bad-exit a dead node would leave the others running.
    """
    cpus = plan.resources.cpus_per_node
    return ["--kill-on-bad-exit=1", *([f"--cpus-per-task={cpus}"] if cpus else []), *plan.srun_args]


def pattern(directory: Path, name: str) -> str:
    """A file name pattern of Slurm's in a directory whose own name is none."""
    return f"{str(directory).replace('%', '%%')}/{name}"
