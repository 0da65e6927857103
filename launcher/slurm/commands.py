"""The calls to Slurm's commands, all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from launcher.errors import SchedulerError
from launcher.slurm.directives import Value, as_arguments
from launcher.slurm.queue import Job, parse_sacct, parse_squeue

_TIMEOUT_S = 60


def missing_command() -> str | None:
    """The first of Slurm's commands that this machine lacks, or None."""
    return next((name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None), None)


def version() -> str | None:
    """Slurm's version, or None where there is none."""
    try:
        return _run(["sbatch", "--version"]).split()[-1]
    except SchedulerError:
        return None


def jobs(job_ids: Sequence[str]) -> dict[str, Job]:
    """What Slurm knows of these jobs, from the queue and then from the accounting.

    A job that neither knows is left out. Without accounting the queue remembers ended jobs for MinJobAge.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    if not job_ids:
        return {}
    found = _from_queue(job_ids)
    forgotten = [job_id for job_id in job_ids if job_id not in found]
    if forgotten:
        found |= _from_accounting(forgotten)
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


def cancel(job_id: str) -> None:
    """Let Slurm end a job: SIGTERM to its processes, SIGKILL after KillWait.

    Raises:
        SchedulerError: Slurm refused.
    """
    _run(["scancel", job_id])


def test_only(directives: Mapping[str, Value]) -> str:
    """What the controller says to a job with these options: the time it could start, or why it never can."""
    command = ["sbatch", "--test-only", *as_arguments(directives), "--wrap=true"]
    done = _call(command)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return said[-1].removeprefix("sbatch: ") if said else f"sbatch --test-only said nothing (exit {done.returncode})"


def _from_queue(job_ids: Sequence[str]) -> dict[str, Job]:
    command = ["squeue", "--noheader", "--states=all", "--array", "--format=%i|%T|%r|%N"]
    done = _call([*command, f"--jobs={','.join(job_ids)}"])
    if done.returncode != 0 and "Invalid job id" not in done.stderr:  # said when the only job asked for is forgotten
        raise SchedulerError(f"squeue failed: {_last_words(done)}")
    return parse_squeue(done.stdout)


def _from_accounting(job_ids: Sequence[str]) -> dict[str, Job]:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,NodeList"]
    try:
        return parse_sacct(_run([*command, f"--jobs={','.join(job_ids)}"]))
    except SchedulerError:
        return {}  # a cluster without accounting: the run's own records have to do


def _run(command: Sequence[str]) -> str:
    done = _call(command)
    if done.returncode != 0:
        raise SchedulerError(f"{command[0]} failed: {_last_words(done)}")
    return done.stdout


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S, env=environment, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SchedulerError(f"there is no {command[0]} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"{command[0]} did not answer within {_TIMEOUT_S} s") from error
