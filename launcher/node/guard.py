"""``python -m launcher.node.guard RUN_DIR|BATCH_FILE CODE``: the batch shell's last act, after the agents ended badly.

Node 0's agent judges and requeues. When it is killed itself (SIGKILL, the kernel's OOM killer), or never began, nobody
else could.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launcher.errors import LauncherError
from launcher.node.pack import Shared
from launcher.node.place import Place
from launcher.node.silent import conclude_start
from launcher.plan.plan import Plan
from launcher.records.rundir import RunDir
from launcher.records.sweepdir import tasks_of
from launcher.slurm.allocation import Allocation, allocation


def main(arguments: list[str]) -> int:
    """Judge the attempts that were cut off, and have them go on; says nothing where none was."""
    records, code = Path(arguments[0]), int(arguments[1])
    try:
        found = allocation({"SLURM_NODEID": "0", **os.environ})
        if found is not None:
            _conclude(records, code, found)
    except (LauncherError, OSError, ValueError) as error:
        print(f"launcher: {error}", file=sys.stderr)
        return 1
    return 0


def _conclude(records: Path, code: int, job: Allocation) -> None:
    runs, packed = _runs(records)
    place = Place(0, job.hosts, None, job.job_id, job.restarts, packed)
    going_on = [conclude_start(Plan.from_json(run.plan.read_text()), run, place, code) for run in map(RunDir, runs)]
    if packed and any(going_on):
        Shared(job, records, list(map(RunDir, runs))).start_again()


def _runs(records: Path) -> tuple[list[Path], bool]:
    if records.is_dir():
        return [records], False
    runs, slots = tasks_of(records, int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")))
    return runs, slots is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
