"""How a run was started: what is written of it, and what Slurm's queue still tells when the writer was cut off."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.records.files import Record, read_json, write_json
from launcher.records.rundir import RunDir
from launcher.records.sweepdir import Batch, SweepDir


def submitted(run: RunDir) -> Record:
    """The scheduler with the job's id, or the process and its host; empty for a run that nobody has started.

    The agent of a run writes this too: before that, a run of a sweep is known by its batch.
    """
    return read_json(run.submission) or _in_batch(run)


def record_job(folder: Path, record: Path, job_id: str) -> None:
    """Write down that the script in a folder was submitted."""
    write_json(record, {"scheduler": "slurm", "job_id": job_id, "folder": str(folder), "time": time.time()})


def reopen(run: RunDir) -> None:
    """Forget how a run was started and how it ended: it is about to be started again."""
    run.submission.unlink(missing_ok=True)
    run.result.unlink(missing_ok=True)
    run.cancel.unlink(missing_ok=True)


def shared(run: RunDir) -> bool:
    """True for a run that is not alone in its job, or that waits for its turn on this machine."""
    mine, batch = submitted(run), _newest_batch(run)
    if batch is None or "queue" in mine:
        return "queue" in mine
    indices = _indices(batch)
    with_it = (one for one, index in indices.items() if index == indices[run.run_id] and one != run.run_id)
    job_id = mine.get("job_id")
    return job_id is not None and any(
        submitted(RunDir(run.path.with_name(one))).get("job_id") == job_id for one in with_it
    )


def adopt(runs: Iterable[RunDir], scripts: Mapping[str, str]) -> None:
    """Write down the jobs of commands that were cut off after sbatch had taken the job.

    Args:
        runs: those to look after.
        scripts: the paths of the user's batch scripts in the queue, by job id.
    """
    found = {job_id: Path(script).resolve() for job_id, script in scripts.items() if script.startswith("/")}
    for folder, record in set(filter(None, map(_unrecorded, runs))):
        for job_id, script in found.items():
            if folder.resolve() in script.parents:
                record_job(folder, record, job_id)


def unrecorded(run: RunDir) -> bool:
    """True for a run whose job, if there is one, was not written down."""
    return _unrecorded(run) is not None


def _unrecorded(run: RunDir) -> tuple[Path, Path] | None:
    if os.path.exists(run.submission):
        return None
    batch = _newest_batch(run)
    if batch is None:
        return run.slurm, run.submission
    return None if os.path.exists(batch.submission) else (batch.path, batch.submission)


def _in_batch(run: RunDir) -> Record:
    batch = _newest_batch(run)
    record = {} if batch is None else batch.submitted()
    if batch is None or not record:
        return {}
    if "job_id" in record:
        return {**record, "job_id": f"{record['job_id']}_{_indices(batch)[run.run_id]}"}
    return {**record, "queue": str(batch.tasks)}


def _newest_batch(run: RunDir) -> Batch | None:
    batches = SweepDir(run.path.parent).batches()
    return next((batch for batch in reversed(batches) if run.run_id in _indices(batch)), None)


def _indices(batch: Batch) -> dict[str, int]:
    """The index of each run of a batch; read once for all its runs."""
    return _read_indices(batch.tasks, os.stat(batch.tasks).st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read_indices(tasks: Path, written_at: int) -> dict[str, int]:
    record = read_json(tasks) or {"tasks": []}
    return {run_id: index for index, run_ids in enumerate(record["tasks"]) for run_id in run_ids}
