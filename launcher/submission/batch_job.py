"""A batch job of Slurm in its parts, whoever writes its script: submitit, or one of our templates."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    guard: tuple[str, ...]
    """What the batch shell calls, with srun's exit code, when the agents may have ended without a verdict."""
    plan_file: Path
    """Where all that the job does is written down."""

    @property
    def after_step(self) -> list[str]:
        """The last lines of the script."""
        return ["code=$?", f"[ $code -eq 0 ] || {shlex.join(self.guard)} $code", "exit $code"]


def batch_job(plan: Plan) -> BatchJob:
    """The job of one run."""
    run = RunDir(Path(plan.run_dir))
    return BatchJob(
        directives={**plan.directives, "output": pattern(run.slurm, "%j_batch.out")},
        workdir=Path(plan.submit_dir),
        setup=plan.setup,
        code=run.code,
        srun_args=step_args(plan, run.slurm, "%j_%t_log.out"),
        container_args=tuple(srun_args(plan)),
        agent=tuple(agent_command(run.path, agents_python(plan))),
        guard=tuple(guard_command(run.path)),
        plan_file=run.plan,
    )


def agent_command(records: Path, python: str = sys.executable) -> list[str]:
    """The agent's command line, by default in the interpreter of this process."""
    return [python, "-u", "-m", "launcher.node", str(records)]


def guard_command(records: Path) -> list[str]:
    """The command line of the batch shell's last act. It runs outside of any image."""
    return [sys.executable, "-m", "launcher.node.guard", str(records)]


def agents_python(plan: Plan) -> str:
    """The agent's interpreter: this one, or the image's where the agent starts in an image."""
    return plan.python if srun_args(plan) else sys.executable


def step_args(plan: Plan, folder: Path, output: str, *, as_one: bool = True) -> tuple[str, ...]:
    """Arguments of the step that holds the agents, which print into files of this pattern in a folder.

    srun fills in nothing of its --chdir, whatever the folder's name is.

    Since 22.05 srun does not take --cpus-per-task from sbatch, and the ranks inherit the task's CPU mask; without
    --kill-on-bad-exit a dead node would leave the others running, as they have to where the nodes hold different runs
    and are not `as_one`.
    """
    cpus = plan.resources.cpus_per_node
    width = [f"--cpus-per-task={cpus}"] if cpus else []
    outlives = plan.resources.outlives_a_node
    together = f"--kill-on-bad-exit={int(as_one and not outlives)}"
    more = ["--no-kill"] if outlives else []
    return (f"--chdir={folder}", f"--output={output}", together, *more, *width, *plan.srun_args)


def pattern(directory: Path, name: str) -> str:
    """A file name pattern of sbatch's in a directory whose own name is none.

    Where a path holds a backslash, Slurm fills in nothing and takes single backslashes out; so there the file goes
    without the job's id. srun can do better: it fills in nothing of its --chdir.
    """
    if "\\" in str(directory):
        return str(directory).replace("\\", "\\\\") + "/" + re.sub("%._", "", name)
    return f"{str(directory).replace('%', '%%')}/{name}"
