"""``python -m launcher.node.guard RUN_DIR|BATCH_FILE CODE``: the batch shell's last act, after the agents were killed.

Node 0's agent judges and requeues. When it is killed itself (SIGKILL, the kernel's OOM killer), nobody else could.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launcher.errors import LauncherError
from launcher.node.place import Place
from launcher.node.silent import conclude_killed
from launcher.plan.plan import Plan
from launcher.records.rundir import RunDir
from launcher.records.sweepdir import tasks_of
from launcher.slurm.allocation import allocation


def main(arguments: list[str]) -> int:
    """Judge the attempts that were cut off, and have them go on; says nothing where none was."""
    records, code = Path(arguments[0]), int(arguments[1])
    try:
        found = allocation({"SLURM_NODEID": "0", **os.environ})
        if found is not None:
            runs, packed = _runs(records)
            for path in runs:
                run = RunDir(path)
                place = Place(0, found.hosts, None, found.job_id, found.restarts, packed)
                conclude_killed(Plan.from_json(run.plan.read_text()), run, place, code)
    except (LauncherError, OSError, ValueError) as error:
        print(f"launcher: {error}", file=sys.stderr)
        return 1
    return 0


def _runs(records: Path) -> tuple[list[Path], bool]:
    if records.is_dir():
        return [records], False
    runs, slots = tasks_of(records, int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")))
    return runs, slots is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
