"""Submission to Slurm through submitit: one task per node, and the agent in it."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import SchedulerError
from launcher.plan.plan import Plan
from launcher.records.nodes import bad_nodes
from launcher.records.rundir import RunDir
from launcher.records.submission import record_job
from launcher.slurm import commands
from launcher.slurm.allocation import outside_of_jobs
from launcher.slurm.directives import for_script
from launcher.slurm.unreachable import with_hint
from launcher.submission.batch_job import BatchJob, batch_job

if TYPE_CHECKING:
    from submitit import SlurmExecutor


def require_slurm() -> None:
    """Fail early, with what to do instead, before anything is written.

    Raises:
        SchedulerError: one of Slurm's commands is missing.
    """
    if (name := commands.missing_command()) is not None:
        raise SchedulerError(
            f"there is no Slurm here ({name} not found): train on this machine with cluster=local, or write a script"
            " with `python -m launcher render … -o run.sbatch` and submit that where Slurm is"
        )


def why_never(plan: Plan) -> str:
    """Why a job could not start as things are, which Slurm takes all the same and lets wait; empty if it could."""
    return _never(plan.directives)


def _never(directives: dict[str, Any]) -> str:
    try:
        return commands.test_only(directives).partition("never: ")[2]
    except SchedulerError:
        return ""


def submit(plan: Plan, run: RunDir) -> str:
    """Submit the run; returns the job's id.

    Raises:
        SchedulerError: Slurm refused, or cannot be reached.
    """
    job_id = sbatch(avoiding(batch_job(plan), run.runs_dir), run.slurm)
    record_job(run.slurm, run.submission, job_id)
    return job_id


def avoiding(job: BatchJob, runs_dir: Path) -> BatchJob:
    """The job, kept away from the nodes that failed a run lately, where it could start without them."""
    hosts = {node.host: node for node in bad_nodes(runs_dir)}
    if not hosts:
        return job
    own = job.directives.get("exclude")
    directives = {**job.directives, "exclude": ",".join([*([own] if own else []), *hosts])}
    if _never(directives):
        return job
    for host, node in hosts.items():
        print(f"launcher: keeps away from {host}: {node.cause} of run {node.run_id}", file=sys.stderr)
    return replace(job, directives=directives)


def sbatch(job: BatchJob, folder: Path) -> str:
    """Have submitit write the job's script into a folder and submit it; returns the job's id.

    The script starts the agent by its command line. submitit's usual way, a pickled object and a script that are
    renamed after the job's id once that is known, would lose a job whose submission is interrupted in between, and
    would take a %j in the folder's own name for the job's id.

    Raises:
        SchedulerError: Slurm refused, or cannot be reached.
    """
    from submitit.core.utils import CommandFunction, FailedJobError

    # submitit prints what sbatch complains about; here it is said once, in the error
    with _environment_of_a_login_node(), contextlib.redirect_stderr(io.StringIO()):
        try:
            executor, script = _executor(job, folder), folder / "job.sbatch"
            script.write_text(executor._make_submission_file_text(shlex.join(job.agent), ""))
            said = CommandFunction(executor._make_submission_command(script), verbose=False)()
            return executor._get_job_id_from_submission_command(said)
        except (FailedJobError, OSError) as error:
            raise SchedulerError(f"sbatch refused the job: {_reason(error)}") from error


def _executor(job: BatchJob, folder: Path) -> SlurmExecutor:
    from submitit import SlurmExecutor

    executor = SlurmExecutor(folder=folder)
    executor.update_parameters(
        job_name=None,  # submitit's own defaults would stand beside the plan's directives
        time=None,
        wckey=None,
        stderr_to_stdout=True,
        additional_parameters=for_script(job.directives),
        srun_args=[*job.srun_args, *job.container_args],
        setup=[
            f"cd {shlex.quote(str(job.workdir))} || exit",
            *job.setup,
            f"export PYTHONPATH={shlex.quote(str(job.code))}${{PYTHONPATH:+:$PYTHONPATH}}",
        ],
        teardown=job.after_step,
    )
    return executor


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
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith('Try "')]
    said = [line.split("sbatch: error: ", 1)[-1] for line in lines if "error:" in line]
    return with_hint((said or lines or [type(error).__name__])[-1])
