"""A sweep: many runs, composed at once, written down, and handed over as few arrays as Slurm allows."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.compose import Composed
from launcher.config.many import Composer
from launcher.config.schema import Config
from launcher.config.validate import validate
from launcher.errors import SchedulerError, UserError
from launcher.plan.build import Here, build
from launcher.plan.limits import require_possible
from launcher.plan.plan import Plan
from launcher.plan.snapshot import Snapshot
from launcher.records.files import write_atomic, write_json
from launcher.records.rundir import RunDir
from launcher.records.submission import record_job
from launcher.records.sweepdir import Batch, SweepDir
from launcher.slurm import commands
from launcher.submission.arrays import Array, Member, arrays, directives, packed
from launcher.submission.batch_job import (
    BatchJob,
    agent_command,
    agents_python,
    batch_job,
    guard_command,
    pattern,
    step_args,
)
from launcher.submission.prepare import find_checkpoint, require_packages, stored_plan, write_run
from launcher.submission.provenance import collect
from launcher.submission.slurm import avoiding, require_slurm, sbatch
from launcher.submission.snapshot import snapshot_for, take_snapshot

_DEFAULT_ARRAY = 1001
"""MaxArraySize where slurm.conf does not say it."""
_WRITERS = 16
"""Threads that write run directories: each file waits for its disk, and the disk takes many at once."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep before it is written."""

    overrides: tuple[str, ...]
    composed: Composed
    member: Member

    @property
    def plan(self) -> Plan:
        return self.member.plan


def prepare(sweep: SweepDir, first: int, jobs: Sequence[Sequence[str]], composer: Composer) -> list[SweepRun]:
    """Compose, check and plan the runs numbered from `first`. Writes nothing.

    Raises:
        UserError: the first run that makes no sense.
    """
    snapshots = _Snapshots(sweep)
    return [
        _prepare(sweep.run_path(first + number), words, composed, snapshots, len(jobs))
        for number, (words, composed) in enumerate(zip(jobs, composer.each(jobs)))
    ]


class _Snapshots(dict[Any, Snapshot | None]):
    """The one copy of the code that the runs of a sweep share; git is asked once for each kind of run."""

    def __init__(self, sweep: SweepDir) -> None:
        super().__init__()
        self._sweep = sweep

    def of(self, config: Config) -> Snapshot | None:
        kind = (config.snapshot, config.cluster.scheduler)
        if kind not in self:
            self[kind] = snapshot_for(config, Path.cwd(), self._sweep.path.parent, self._sweep.snapshot)
        return self[kind]


def _prepare(path: Path, words: Sequence[str], composed: Composed, snapshots: _Snapshots, runs: int) -> SweepRun:
    config, sweep = composed.config, path.parent
    validate(config)
    resume = "" if config.resume is None else str(find_checkpoint(config, sweep.parent))
    here = Here(path.name, sweep, Path.cwd(), sys.executable, resume, snapshots.of(config), shared=sweep)
    member = _member(config, here, runs)
    require_possible(member.plan)
    return SweepRun(tuple(words), composed, member)


def _member(config: Config, here: Here, runs: int) -> Member:
    if config.sweep.pack == 1:
        plan = build(config, here)
        return Member(plan, plan)
    one, allocation = packed(config, runs)
    return Member(build(one, here), build(allocation, here))


def require(runs: Sequence[SweepRun]) -> None:
    """Fail where a run could not start, before anything is written.

    Raises:
        UserError, SchedulerError: a library or Slurm is missing; the runs are for different schedulers.
    """
    schedulers = {run.plan.scheduler for run in runs}
    if len(schedulers) > 1:
        raise UserError("a sweep runs either here or on Slurm: its runs name clusters of both kinds")
    for run in {run.composed.config.library.name: run for run in runs}.values():
        require_packages(run.composed.config)
    if schedulers == {"slurm"}:
        require_slurm()


def write(sweep: SweepDir, runs: Sequence[SweepRun]) -> None:
    """Add the runs to the sweep's records. The record that names them comes last: it names nothing unfinished.

    Raises:
        UserError: a directory cannot be written, or the snapshot cannot be taken.
    """
    _write_common(sweep, next((run.plan for run in runs if run.plan.snapshot), runs[0].plan))
    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(lambda run: _write(run, sweep), runs))
    named = {**sweep.overrides(), **{run.plan.run_id: list(run.overrides) for run in runs}}
    settings = dataclasses.asdict(runs[0].composed.config.sweep)
    write_json(sweep.record, {"time": time.time(), "directory": str(Path.cwd()), "sweep": settings, "runs": named})


def _write_common(sweep: SweepDir, plan: Plan) -> None:
    """What all runs share, once."""
    if not sweep.provenance.exists():
        write_json(sweep.provenance, collect(plan))
    if plan.snapshot and not sweep.snapshot.exists():
        take_snapshot(sweep.snapshot, Path(plan.repository), sweep.path.parent)


def _write(run: SweepRun, sweep: SweepDir) -> None:
    directory = write_run(run.plan, run.composed, sweep.provenance, sweep.code)
    if run.member.packed:
        write_atomic(directory.allocation, run.member.allocation.to_json())


def stored_member(run: RunDir) -> Member:
    """A run of a sweep as :func:`write` left it."""
    plan = stored_plan(run.plan)
    return Member(plan, stored_plan(run.allocation) if run.allocation.exists() else plan)


def submit(sweep: SweepDir, members: Sequence[Member]) -> Iterator[tuple[Array, str]]:
    """Hand the runs to Slurm; yields each array with its job id as it is taken.

    Raises:
        SchedulerError: Slurm refused an array; those before it are queued, and the rest can be submitted later.
    """
    settings = sweep.read()["sweep"]
    most = min(commands.array_limit(), commands.submit_limit() or sys.maxsize)
    job_id = None
    for array in arrays(members, most):
        batch = sweep.new_batch(array.task_ids(), array.slots)
        job = _array_job(sweep, batch, array, settings["parallel"], job_id)
        try:
            job_id = sbatch(avoiding(job, sweep.path.parent), batch.path)
        except SchedulerError:
            batch.forget()
            raise
        record_job(batch.path, batch.submission, job_id)
        yield array, job_id


def array_job(sweep: SweepDir, members: Sequence[Member]) -> tuple[Plan, BatchJob]:
    """The runs as one array that is submitted by hand, with what each index asks Slurm for.

    Raises:
        UserError: they ask Slurm for different things, or are more than an array may have by Slurm's default.
    """
    found = arrays(members, _DEFAULT_ARRAY)
    if len(found) != 1:
        raise UserError(f"these runs are {len(found)} arrays, and a script is one: start them with -m, or render parts")
    batch = sweep.new_batch(found[0].task_ids(), found[0].slots)
    plan = dataclasses.replace(found[0].allocation, run_id=sweep.sweep_id)
    return plan, _array_job(sweep, batch, found[0], sweep.read()["sweep"]["parallel"], None)


def _array_job(sweep: SweepDir, batch: Batch, array: Array, parallel: int | None, after: str | None) -> BatchJob:
    plan = array.allocation
    return dataclasses.replace(
        batch_job(plan),
        directives={**directives(array, parallel, after), "output": pattern(batch.path, "%A_%a_batch.out")},
        code=sweep.code,
        plan_file=batch.tasks,
        srun_args=step_args(plan, batch.path, "%A_%a_%t_log.out", as_one=array.slots is None),
        agent=tuple(agent_command(batch.tasks, agents_python(plan))),
        guard=tuple(guard_command(batch.tasks)),
    )


def slots_here(plan: Plan, gpus: Sequence[str], parallel: int | None) -> int:
    """How many runs this machine takes at a time: one per device, or per core, for each of their ranks."""
    devices = len(gpus) or len(os.sched_getaffinity(0))
    slots = max(1, devices // plan.resources.nproc_per_node)
    return slots if parallel is None else min(slots, parallel)
