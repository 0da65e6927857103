"""An allocation that is held for a while, and steps in it, for a command that runs outside of the job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import SchedulerError
from launcher.slurm import commands
from launcher.slurm.allocation import outside_of_jobs
from launcher.slurm.directives import Value, as_arguments
from launcher.slurm.hostlist import expand
from launcher.slurm.step import NOT_FOR_STEPS

_RELEASE_S = 20.0
_CANCEL_TRIES = 3
_OF_A_STEP = ("cpus-per-task", "mem", "gpus-per-node", "gres")
"""Options that srun takes from its own command line only, since it is started outside of the job."""
_SBATCH_ONLY = {"array", "export", "export-file", "input", "no-requeue", "propagate", "wait"}
"""Options that salloc refuses; none of them matters here."""
_HOLD = 'echo "held $SLURM_JOB_ID $SLURM_JOB_NODELIST"; exec cat >/dev/null'
"""Holds the allocation as long as somebody holds the other end of its input: however that process ends."""


@dataclass(frozen=True)
class Held:
    """An allocation, until the context that made it ends."""

    job_id: str
    hosts: tuple[str, ...]
    options: Mapping[str, Value]
    srun_args: Sequence[str] = ()

    def step(self, hosts: Sequence[str], script: str, text: str) -> subprocess.Popen[str]:
        """Start lines of shell once on each of some hosts, each with this text as its input.

        Terminating the process kills the step. It has a session of its own: Ctrl-C is for its starter to hear.
        """
        count = len(hosts)
        ours = [f"--jobid={self.job_id}", "--overlap", "--quiet", f"--nodelist={','.join(hosts)}"]
        size = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--kill-on-bad-exit=0"]
        command = ["srun", *ours, *size, *as_arguments(self.options), *self.srun_args, "bash", "-c", script]
        return started(command, _environment(), text)


def started(command: Sequence[str], environment: Mapping[str, str], text: str) -> subprocess.Popen[str]:
    """A process in a session of its own, which has been given its input, and whose output can be read."""
    process = subprocess.Popen(
        command, env=environment, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, and says why
        process.stdin.write(text)
        process.stdin.close()
    process.stdin = None  # communicate() would want to close it once more
    return process


@contextlib.contextmanager
def held_allocation(
    directives: Mapping[str, Value], nodes: int, minutes: int, wait_s: int, srun_args: Sequence[str]
) -> Generator[Held]:
    """An allocation of a job like the one that is meant; it is released at the end, whatever that is.

    Args:
        directives: sbatch's options.
        nodes: how many.
        minutes: its time limit.
        wait_s: how long to wait for free nodes.
        srun_args: more options of each srun.

    Raises:
        SchedulerError: there is no salloc, it was refused, or no nodes were free in time.
    """
    options = {name: value for name, value in directives.items() if name not in NOT_FOR_STEPS | _SBATCH_ONLY}
    ours = ["--job-name=nccl-diagnose", f"--time={minutes}", f"--immediate={wait_s}", f"--nodes={nodes}", "--quiet"]
    command = ["salloc", *as_arguments({**options, "no-kill": True}), *ours, "sh", "-c", _HOLD]
    try:
        holder = subprocess.Popen(
            command, env=_environment(), text=True, errors="replace", start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SchedulerError("there is no salloc on this machine") from error
    job_id = ""
    try:
        job_id, hosts = _granted(holder)
        yield Held(job_id, hosts, {name: directives[name] for name in _OF_A_STEP if name in directives}, srun_args)
    finally:
        if job_id:
            _release(holder, job_id)
        else:
            holder.terminate()  # the wait for free nodes is over
            _end_of(holder)


def _granted(holder: subprocess.Popen[str]) -> tuple[str, tuple[str, ...]]:
    assert holder.stdout is not None and holder.stderr is not None
    for line in holder.stdout:  # a site's own words may come before ours
        match line.split():
            case ["held", job_id, hosts]:
                return job_id, tuple(expand(hosts))
            case _:
                continue
    said = holder.stderr.read().strip().splitlines() or ["it said nothing"]
    raise SchedulerError(f"salloc failed: {said[-1].removeprefix('salloc: error: ')}")


def _release(holder: subprocess.Popen[Any], job_id: str) -> None:
    """End the shell that holds it; salloc then gives the nodes back, and Slurm ends what still runs there.

    No signal to salloc: one that comes as its shell ends has Slurm 22.05's spin for ever and keep the nodes.
    """
    assert holder.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        holder.stdin.close()
    _end_of(holder)
    _make_sure_of(job_id)


def _end_of(holder: subprocess.Popen[Any]) -> None:
    try:
        holder.wait(_RELEASE_S)
    except subprocess.TimeoutExpired:
        holder.kill()


def _make_sure_of(job_id: str) -> None:
    """salloc asks the controller once to take the nodes back; one that is too busy to answer would keep them."""
    for _ in range(_CANCEL_TRIES):
        try:
            commands.cancel(job_id)  # of a job that has ended it thinks nothing
            return
        except SchedulerError:
            time.sleep(1)


def _environment() -> dict[str, str]:
    return {**outside_of_jobs(os.environ), "LC_ALL": "C"}
