"""Submission to Slurm through submitit: one task per node, and the agent in it."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

from launcher.errors import SchedulerError, UserError
from launcher.plan.plan import Plan
from launcher.records.files import write_json
from launcher.records.rundir import RunDir
from launcher.slurm.allocation import outside_of_jobs
from launcher.slurm.commands import missing_command
from launcher.submit.agent_process import RunAgent

if TYPE_CHECKING:
    from submitit import SlurmExecutor


def require_slurm(plan: Plan) -> None:
    """Fail early, with what to do instead, before anything is written.

    Raises:
        SchedulerError: one of Slurm's commands is missing.
        UserError: the run directory has a name that Slurm would read as a pattern.
    """
    if "%" in plan.run_dir or "\\" in plan.run_dir:
        raise UserError(f"runs_dir: Slurm reads % and \\ in the path of its output as patterns: '{plan.run_dir}'")
    if (name := missing_command()) is not None:
        raise SchedulerError(
            f"there is no Slurm here ({name} not found): train on this machine with cluster=local, or write a script"
            " with `python -m launcher render … -o run.sbatch` and submit that where Slurm is"
        )


def submit(plan: Plan, run: RunDir) -> str:
    """Submit the run; returns the job's id.

    Raises:
        SchedulerError: Slurm refused, or cannot be reached.
    """
    from submitit.core.utils import FailedJobError

    # submitit prints what sbatch complains about; here it is said once, in the error
    with _environment_of_a_login_node(), contextlib.redirect_stderr(io.StringIO()):
        executor = _executor(plan, run)
        try:
            job = executor.submit(RunAgent(str(run.path)))
        except (FailedJobError, OSError) as error:
            raise SchedulerError(f"sbatch refused the job: {_reason(error)}") from error
    write_json(run.submission, {"scheduler": "slurm", "job_id": job.job_id, "time": time.time()})
    return job.job_id


def _executor(plan: Plan, run: RunDir) -> SlurmExecutor:
    from submitit import SlurmExecutor

    executor = SlurmExecutor(folder=run.slurm)
    executor.update_parameters(
        nodes=plan.resources.nodes,
        job_name=None,  # submitit's own defaults would stand beside the plan's directives
        time=None,
        wckey=None,
        stderr_to_stdout=True,
        additional_parameters=plan.directives,
        srun_args=srun_args(plan),
        setup=[*plan.setup, f"export PYTHONPATH={shlex.quote(str(run.code))}${{PYTHONPATH:+:$PYTHONPATH}}"],
    )
    return executor


def srun_args(plan: Plan) -> list[str]:
    """Arguments of the step that holds the agents.

    Since 22.05 srun does not take --cpus-per-task from sbatch, and the ranks inherit the task's CPU mask; without
    --kill-on-bad-exit a dead node would leave the others running.
    """
    cpus = plan.resources.cpus_per_node
    return ["--kill-on-bad-exit=1", *([f"--cpus-per-task={cpus}"] if cpus else []), *plan.srun_args]


@contextlib.contextmanager
def _environment_of_a_login_node() -> Generator[None]:
    """submitit hands this process's environment to sbatch, and sbatch to the job."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(outside_of_jobs(before))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _reason(error: Exception) -> str:
    """sbatch's own words, without submitit's around them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line.split("sbatch: error: ", 1)[-1] for line in lines if "error:" in line]
    return (said or lines or [type(error).__name__])[-1]
