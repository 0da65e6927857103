"""The calls to Slurm's commands, all of them."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import SchedulerError
from launcher.slurm import probe
from launcher.slurm.directives import Value, as_arguments
from launcher.slurm.inventory import Node, Partition, parse_config, parse_nodes, parse_partitions
from launcher.slurm.partitions import FORMAT, parse_sinfo, why_never
from launcher.slurm.queue import Job, parse_limits, parse_sacct, parse_scripts, parse_squeue

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
    found = _from_queue(_whole(job_ids))
    forgotten = _whole([job_id for job_id in job_ids if job_id not in found])
    if forgotten:
        found = _from_accounting(forgotten) | found
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


def _whole(job_ids: Sequence[str]) -> list[str]:
    """An array is asked for as a whole: a thousand ids are no command line."""
    return list(dict.fromkeys(job_id.partition("_")[0] for job_id in job_ids))


def cancel(job_id: str) -> None:
    """Let Slurm end a job: SIGTERM to its processes, SIGKILL after KillWait.

    Raises:
        SchedulerError: Slurm refused.
    """
    _run(["scancel", job_id])


def test_only(directives: Mapping[str, Value]) -> str:
    """When and where a job with these options could start, or why it never can.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    done = _call(["sbatch", "--test-only", *as_arguments(directives), "--wrap=true"])
    said = _last_words(done).removeprefix("sbatch: ").removeprefix("allocation failure: ")
    if "nable to contact" in said:
        raise SchedulerError(f"sbatch --test-only failed: {said}")
    reason = why_never(directives, parse_sinfo(_run(["sinfo", "--noheader", f"--format={FORMAT}"])))
    if done.returncode != 0 or reason:
        return f"never: {reason or said}"
    return re.sub(r"^Job \d+ to start", "could start", said)  # the id is of no job


def my_scripts() -> dict[str, str]:
    """The paths of this user's batch scripts, by job id (an array's own id), as far as the queue remembers.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    return parse_scripts(_run(["squeue", "--me", "--noheader", "--states=all", "--format=%F|%o"]))


def array_limit() -> int:
    """How many indices an array may have: MaxArraySize is the first index that is refused.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    return int(parse_config(_run(["scontrol", "show", "config"])).get("MaxArraySize", "1001"))


def submit_limit() -> int | None:
    """How many jobs this user may have in the queue (MaxSubmitJobs); None without a limit, or where nobody tells."""
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={getpass.getuser()}"]
    try:
        return parse_limits(_run([*command, "format=MaxSubmitJobs"]))
    except SchedulerError:
        return None  # a cluster without accounting has no such limit


def inventory() -> tuple[list[Partition], list[Node], dict[str, str]]:
    """Partitions, nodes and configuration of the cluster.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    return (
        parse_partitions(_run(["scontrol", "--oneliner", "show", "partition"])),
        parse_nodes(_run(["scontrol", "--oneliner", "show", "node"])),
        parse_config(_run(["scontrol", "show", "config"])),
    )


def ask_node(partition: str, *, gpu: bool) -> dict[str, Any]:
    """What `launcher.slurm.probe` finds on some node: a job of at most a minute, which starts soon or not at all.

    Raises:
        SchedulerError: Slurm refused, or has no free node.
    """
    limits = [f"--partition={partition}", "--nodes=1", "--ntasks=1", "--time=1", f"--immediate={_TIMEOUT_S}"]
    request = ["--gres=gpu:1"] if gpu else []  # many partitions with GPUs refuse jobs without
    program = [sys.executable, "-I", str(Path(probe.__file__).resolve())]  # -I: or our queue.py would hide Python's
    return json.loads(_run(["srun", "--quiet", *limits, *request, *program], 3 * _TIMEOUT_S))


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


def _run(command: Sequence[str], timeout_s: int = _TIMEOUT_S) -> str:
    done = _call(command, timeout_s)
    if done.returncode != 0:
        raise SchedulerError(f"{command[0]} failed: {_last_words(done)}")
    return done.stdout


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]


def _call(command: Sequence[str], timeout_s: int = _TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
            timeout=timeout_s, env=environment, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SchedulerError(f"there is no {command[0]} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"{command[0]} did not answer within {timeout_s} s") from error
