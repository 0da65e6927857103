"""A short program on every node of a job of its own, with what it prints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from launcher.errors import SchedulerError
from launcher.slurm.allocation import outside_of_jobs
from launcher.slurm.directives import Value, as_arguments

_WAIT_S = 60
"""For free nodes: somebody sits in front of it."""
NOT_FOR_STEPS = {"job-name", "time", "signal", "requeue", "open-mode", "output", "error", "dependency"}


def run_on_nodes(
    directives: Mapping[str, Value], nodes: int, srun_args: Sequence[str], script: str, text: str, minutes: int
) -> tuple[str, str]:
    """Run lines of shell once per node of a new, short job; returns what they printed, and srun's last words.

    Args:
        directives: sbatch's options, of a job like the one that is meant.
        nodes: how many, and so how many tasks.
        srun_args: more options of srun.
        script: for bash.
        text: what each of them reads from its standard input.
        minutes: the job's time limit.

    Raises:
        SchedulerError: there is no srun, it was refused, no nodes were free in time, or it did not end.
    """
    options = {name: value for name, value in directives.items() if name not in NOT_FOR_STEPS}
    ours = ["--job-name=doctor", f"--time={minutes}", f"--immediate={_WAIT_S}", f"--ntasks={nodes}", "--quiet"]
    command = ["srun", *as_arguments(options), *ours, "--kill-on-bad-exit=0", *srun_args, "bash", "-c", script]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", timeout=_WAIT_S + 60 * minutes,
            env={**outside_of_jobs(os.environ), "LC_ALL": "C"}, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SchedulerError("there is no srun on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"srun did not end within {error.timeout:.0f} s") from error
    words = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode != 0 and not done.stdout.strip():
        raise SchedulerError(f"srun failed: {words or f'exit code {done.returncode}'}")
    return done.stdout, words
