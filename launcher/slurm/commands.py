"""The calls to Slurm's commands, all of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.errors import SchedulerError
from launcher.slurm import probe
from launcher.slurm.allocation import outside_of_jobs
from launcher.slurm.directives import Value, as_arguments
from launcher.slurm.fate import Fate, parse_fate
from launcher.slurm.inventory import Node, Partition, parse_config, parse_nodes, parse_partitions
from launcher.slurm.partitions import FORMAT, parse_sinfo, why_never
from launcher.slurm.partitions import Partition as Limits
from launcher.slurm.queue import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Job,
    parse_limits,
    parse_sacct,
    parse_scripts,
    parse_squeue,
)
from launcher.slurm.reasons import may_be_for_ever
from launcher.slurm.unreachable import with_hint
from launcher.slurm.user import user_name

_TIMEOUT_S = 60
_SOON_S = 15
"""For questions from inside a job, which may have no more than seconds left."""
LOOK_S = 10
"""For questions that a person waits for: an older answer is better than a late one."""
_FILTERS = ("SQUEUE_", "SACCT_", "SINFO_")
"""Beginnings of variables by which people change what these commands print by default: a filter would hide jobs."""


def missing_command() -> str | None:
    """The first of Slurm's commands that this machine lacks, or None."""
    return next((name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None), None)


def version() -> str | None:
    """Slurm's version, or None where there is none."""
    try:
        return _run(["sbatch", "--version"]).split()[-1]
    except SchedulerError:
        return None


def jobs(job_ids: Sequence[str], ends: Mapping[str, Job] | None = None, patience_s: int = _TIMEOUT_S) -> dict[str, Job]:
    """What Slurm knows of these jobs: one question to the queue, and one to the accounting about those it forgot.

    A job that neither knows is left out. Without accounting the queue remembers ended jobs for MinJobAge. What the
    accounting has of a job that the queue forgot is never taken for going on.

    Args:
        job_ids: of jobs, and of tasks of arrays.
        ends: of jobs that are known to have ended; the accounting is not asked about them.
        patience_s: how long to wait for each answer.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    if not job_ids:
        return {}
    found = {**(ends or {}), **_from_queue(_whole(job_ids), patience_s)}
    forgotten = [job_id for job_id in job_ids if job_id not in found]
    if forgotten:
        told = _from_accounting(forgotten, patience_s)
        found = {job_id: replace(job, gone=True) for job_id, job in told.items()} | found
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


def ended_jobs(job_ids: Sequence[str]) -> dict[str, Job]:
    """Those of the jobs whose end the accounting knows; for when the controller cannot be reached."""
    found = _from_accounting(job_ids, LOOK_S) if job_ids else {}
    return {job_id: found[job_id] for job_id in job_ids if job_id in found and found[job_id].ended}


def with_reasons(found: Mapping[str, Job]) -> dict[str, Job]:
    """The same jobs; those that can never start in their partition, as it is, say why."""
    if not any(map(may_be_for_ever, found.values())):
        return dict(found)
    try:
        there = _partitions()
    except SchedulerError:
        return dict(found)  # Slurm's own word has to do
    return {
        job_id: replace(job, never=why_never(job.asks, there)) if may_be_for_ever(job) else job
        for job_id, job in found.items()
    }


def _whole(job_ids: Sequence[str]) -> list[str]:
    """An array is asked for as a whole: a thousand ids are no command line."""
    return list(dict.fromkeys(job_id.partition("_")[0] for job_id in job_ids))


def cancel(*job_ids: str) -> None:
    """Let Slurm end jobs: SIGTERM to their processes, SIGKILL after KillWait.

    Raises:
        SchedulerError: Slurm refused.
    """
    _run(["scancel", *job_ids])


def fate(job_id: str) -> Fate:
    """What Slurm is doing with a job.

    Raises:
        SchedulerError: the controller cannot be reached, or has forgotten the job.
    """
    try:
        return parse_fate(_soon(["scontrol", "show", "job", job_id]))
    except ValueError as error:
        raise SchedulerError(f"scontrol show job {job_id}: {error}") from error


def requeue(job_id: str) -> None:
    """Have a job start again, under the same id.

    What still runs of it gets SIGTERM, then SIGKILL after KillWait.

    Raises:
        SchedulerError: Slurm refused, or cannot be reached.
    """
    _soon(["scontrol", "requeue", job_id])


def keep_away(job_id: str, exclude: str) -> None:
    """Have a pending job not run on the nodes of a list.

    Raises:
        SchedulerError: Slurm refused, as for a job that is not pending, or cannot be reached.
    """
    _soon(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={exclude}"])


def submit_script(script: Path) -> str:
    """Submit a script as from a login node; returns the job's id.

    Raises:
        SchedulerError: Slurm refused, or cannot be reached.
    """
    said = _run(["sbatch", "--parsable", str(script)], environ=outside_of_jobs(os.environ))
    return said.split()[-1].partition(";")[0]  # a site's own words may stand before it, a cluster's name after


def submit_again(job_id: str, exclude: str = "") -> str:
    """Submit the script of a job once more, to start when that job has ended; returns the new job's id.

    Raises:
        SchedulerError: Slurm refused, or cannot be reached.
    """
    script = _soon(["scontrol", "write", "batch_script", job_id, "-"])
    index = [f"--array={job_id.partition('_')[2]}"] if "_" in job_id else []
    others = [f"--exclude={exclude}"] if exclude else []
    command = ["sbatch", "--parsable", f"--dependency=afterany:{job_id}", *index, *others]
    said = _soon(command, script, outside_of_jobs(os.environ))
    new = said.split()[-1].partition(";")[0]  # as in submit_script
    return f"{new}_{job_id.partition('_')[2]}" if index else new


def down(hosts: Sequence[str]) -> list[str]:
    """Those of the hosts that Slurm takes for dead, or for unfit to run a job.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    shown = _soon(["scontrol", "--oneliner", "show", "node", ",".join(hosts)])
    states = dict(re.findall(r"^NodeName=(\S+) .*?\bState=(\S+)", shown, re.MULTILINE))
    return [host for host in hosts if re.search(r"DOWN|FAIL|ERROR|NOT_RESPONDING|\*", states.get(host, ""))]


def slurmd_timeout() -> int:
    """After how many seconds without an answer Slurm takes a node for dead; 0 for never.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    return _seconds_of("SlurmdTimeout", 300)


def kill_wait() -> int:
    """How many seconds Slurm leaves between the SIGTERM and the SIGKILL of a job that it ends.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    return _seconds_of("KillWait", 30)


def _seconds_of(key: str, usual: int) -> int:
    """From Slurm's own configuration, as ``30 sec``."""
    said = parse_config(_soon(["scontrol", "show", "config"])).get(key, "")
    return int(said.split()[0]) if said else usual


def test_only(directives: Mapping[str, Value]) -> str:
    """When and where a job with these options could start, or why it never can.

    Raises:
        SchedulerError: the controller cannot be reached.
    """
    done = _call(["sbatch", "--test-only", *as_arguments(directives), "--wrap=true"])
    said = _last_words(done).removeprefix("sbatch: ").removeprefix("allocation failure: ")
    if "nable to contact" in said:
        raise SchedulerError(f"sbatch --test-only failed: {said}")
    reason = why_never(directives, _partitions())
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
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={user_name()}"]
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


def _partitions() -> list[Limits]:
    return parse_sinfo(_run(["sinfo", "--noheader", f"--format={FORMAT}"], LOOK_S))


def _from_queue(job_ids: Sequence[str], patience_s: int) -> dict[str, Job]:
    command = ["squeue", "--noheader", "--states=all", "--array", f"--format={SQUEUE_FORMAT}"]
    done = _call([*command, f"--jobs={','.join(job_ids)}"], patience_s)
    if done.returncode != 0 and "Invalid job id" not in done.stderr:  # said when the only job asked for is forgotten
        raise SchedulerError(f"squeue failed: {_last_words(done)}")
    return parse_squeue(done.stdout)


def _from_accounting(job_ids: Sequence[str], patience_s: int) -> dict[str, Job]:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={SACCT_FORMAT}"]
    try:
        return parse_sacct(_run([*command, f"--jobs={','.join(_whole(job_ids))}"], patience_s))
    except SchedulerError:
        return {}  # a cluster without accounting: the run's own records have to do


def _soon(command: Sequence[str], stdin: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """From inside of a job that is being stopped: its SIGTERM goes to all processes, and must not end this one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return _run(command, _SOON_S, stdin, environ)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(
    command: Sequence[str], timeout_s: int = _TIMEOUT_S, stdin: str = "", environ: Mapping[str, str] = os.environ
) -> str:
    done = _call(command, timeout_s, stdin, environ)
    if done.returncode != 0:
        raise SchedulerError(f"{command[0]} failed: {_last_words(done)}")
    return done.stdout


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    return with_hint((done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1])


def _call(
    command: Sequence[str], timeout_s: int = _TIMEOUT_S, stdin: str = "", environ: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in environ.items() if not name.startswith(_FILTERS)}
    environment = {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", input=stdin, timeout=timeout_s,
            env=environment, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SchedulerError(f"there is no {command[0]} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"{command[0]} did not answer within {timeout_s} s") from error
