"""``python -m launcher.node RUN_DIR [NODE]``: the agent, whoever starts it: submitit, a script, a person."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.node import processes
from launcher.node.agent import serve
from launcher.node.claim import claim
from launcher.node.pack import Pack, Shared, share_out
from launcher.node.place import find_place
from launcher.plan.plan import Plan
from launcher.records.rundir import RunDir
from launcher.records.sweepdir import tasks_of
from launcher.slurm.allocation import allocation, visible_gpus

PARENT_VARIABLE = "LAUNCHER_FOREGROUND"
"""The process whose end ends this one: the command line of a run in the foreground."""


def main(arguments: list[str]) -> int:
    """Run the agent of the run, or of the batch of runs, named on the command line; returns its exit code."""
    if len(arguments) not in (1, 2) or not all(word.isdigit() for word in arguments[1:]):
        print("usage: python -m launcher.node RUN_DIR|BATCH_FILE [NODE]", file=sys.stderr)
        return 2
    if parent := os.environ.pop(PARENT_VARIABLE, None):
        # In a job the batch script judges and requeues what was cut off; a person's SIGTERM would end it for good.
        processes.end_with_parent(int(parent), signal.SIGKILL if "SLURM_JOB_ID" in os.environ else signal.SIGTERM)
    try:
        work = _work(Path(arguments[0]), *map(int, arguments[1:]))
    except (LauncherError, OSError, ValueError) as error:
        print(f"launcher: {error}", file=sys.stderr)
        return 1
    processes.adopt_orphans()
    try:
        return asyncio.run(_undisturbed_at_its_end(work))
    finally:
        processes.end_descendants()


async def _undisturbed_at_its_end(work: Coroutine[Any, Any, int]) -> int:
    """srun ends a step in which one agent was killed: the others are to end with their own codes, and leave nothing."""
    try:
        return await work
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _work(records: Path, node: int | None = None) -> Coroutine[Any, Any, int]:
    if records.is_dir():
        return _one(records, node)
    runs, slots = tasks_of(records, int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")))
    return _one(runs[0]) if slots is None else _several(records, runs, slots)


def _one(run_dir: Path, node: int | None = None) -> Coroutine[Any, Any, int]:
    run = RunDir(run_dir)
    plan = Plan.from_json(run.plan.read_text())
    place = find_place(plan, os.environ, node)
    if place.leader and plan.scheduler != "local":
        claim(run, place)
    return serve(plan, run, place)


def _several(batch: Path, runs: Sequence[Path], count: int) -> Coroutine[Any, Any, int]:
    """This node's share of the runs, where the allocation has several nodes."""
    found, shared = allocation(os.environ), None
    if found is not None:
        shared = Shared(found, batch, list(map(RunDir, runs)))
        runs = runs[found.node * count :][:count]
    slots = share_out(count, visible_gpus(os.environ), sorted(os.sched_getaffinity(0)))
    return Pack(runs, slots, shared).serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
