"""A script that is submitted and waited for."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from launcher.errors import SchedulerError
from launcher.slurm import commands
from launcher.slurm.allocation import outside_of_jobs


def run_script(script: Path) -> int:
    """Submit a script and wait for its job's end; returns the job's exit code. Ctrl-C cancels the job.

    Raises:
        SchedulerError: Slurm refused it.
    """
    command = ["sbatch", "--wait", "--parsable", str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env=outside_of_jobs(os.environ), start_new_session=True,
    ) as waiting:  # fmt: skip
        assert waiting.stdout is not None and waiting.stderr is not None
        job_id = waiting.stdout.readline().strip().partition(";")[0]
        try:
            complaints = waiting.stderr.read().strip()
        except KeyboardInterrupt:
            with contextlib.suppress(SchedulerError):
                commands.cancel(job_id)
            raise
    if not job_id:
        reason = (complaints or "no reason given").splitlines()[-1].removeprefix("sbatch: error: ")
        raise SchedulerError(f"sbatch refused the job: {reason}")
    return waiting.returncode
