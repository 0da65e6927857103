"""A script that is submitted and waited for."""

from __future__ import annotations

import time
from pathlib import Path

from launcher.slurm import commands

_LOOK_S, _RARELY_S = 0.5, 10.0


def run_script(script: Path) -> None:
    """Submit a script and wait until its job has ended, however. Ctrl-C cancels the job.

    Not ``sbatch --wait``, which tells the job's id only at its end where it prints into a pipe.

    Raises:
        SchedulerError: Slurm refused it, or cannot be reached.
    """
    job_id, pause = commands.submit_script(script), _LOOK_S
    try:
        while (job := commands.jobs([job_id]).get(job_id)) is not None and not job.ended:
            time.sleep(pause)
            pause = min(1.2 * pause, _RARELY_S)
    except KeyboardInterrupt:
        commands.cancel(job_id)
        raise
