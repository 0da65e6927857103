"""``-m``: many runs from one command."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.cli.arguments import Arguments
from launcher.cli.show_plan import describe
from launcher.cli.start import as_typed, require_script, script_text, warn_of_never, write_script
from launcher.cli.sweep_watch import follow_batch, follow_jobs
from launcher.cli.table import table
from launcher.config.compose import compose
from launcher.config.many import Composer
from launcher.config.multirun import multirun, wants_objectives
from launcher.errors import LauncherError, SchedulerError, UserError
from launcher.records import sweepdir
from launcher.records.result import COMPLETED, STOPPED, Result, read_result
from launcher.records.rundir import RunDir
from launcher.records.sweepdir import SweepDir
from launcher.submission.arrays import Member, arrays
from launcher.submission.devices import gpus_here
from launcher.submission.local import Foreground
from launcher.submission.sweep import SweepRun, array_job, prepare, require, slots_here, submit, write


def sweep(arguments: Arguments) -> int:
    """Compose a sweep and start its runs; returns the command's exit code."""
    return Sweeping(arguments, require, hand_over).run()


def render_sweep(arguments: Arguments) -> int:
    """Write a sweep as a script for sbatch: one array.

    Raises:
        UserError: a sweeper is to choose the runs, which nobody would tell how they went.
    """
    if wants_objectives(arguments.overrides):
        raise UserError("render writes the runs of a grid: a sweeper that learns from them has to start them, with -m")

    def write_it(sweep: SweepDir, members: Sequence[Member], wait: bool) -> int:
        try:
            plan, job = array_job(sweep, members)
            text = script_text(arguments, plan, job)
        except UserError:
            shutil.rmtree(sweep.path)
            raise
        write_script(arguments, text, sweep.path)
        return 0

    return Sweeping(arguments, lambda runs: require_script(arguments, runs[0].plan), write_it).run()


class RunFailed(LauncherError):
    """What a sweeper gets in place of the objective of a run that has none."""


class Sweeping:
    """A sweep in the making: it grows by the runs that Hydra's sweeper asks for."""

    def __init__(
        self, arguments: Arguments, require: Callable[[Sequence[SweepRun]], None],
        start: Callable[[SweepDir, Sequence[Member], bool], int],
        show: Callable[[Sequence[SweepRun]], None] = lambda runs: print(_preview(runs)),
    ) -> None:  # fmt: skip
        """Take what is to be done with the runs: check them, and start them; `show` is for a dry run."""
        self._arguments, self._require, self._start, self._show = arguments, require, start, show
        self._composer = Composer(arguments.config_dirs)
        self._for_sweeper = wants_objectives(arguments.overrides)
        self.directory = SweepDir(_runs_dir(arguments) / sweepdir.new_sweep_id(datetime.now()))
        self._code = 0

    def run(self) -> int:
        """Let the sweeper launch its runs; returns the command's exit code."""
        words, directories = self._arguments.overrides, self._arguments.config_dirs
        multirun(words, directories, str(self.directory.path), self.launch)
        return self._code

    def launch(self, jobs: Sequence[Sequence[str]], first: int) -> list[Any]:
        """Start the runs with these overrides; returns their objectives, which are None unless it waits for them."""
        runs = prepare(self.directory, first, jobs, self._composer)
        config = runs[0].composed.config
        if config.dry_run:
            self._show(runs)
            return [0.0] * len(runs)
        self._require(runs)
        if not self.directory.path.exists():
            sweepdir.create(self.directory.path.parent, self.directory.sweep_id)
        write(self.directory, runs)
        self._code = self._start(self.directory, [run.member for run in runs], config.wait or self._for_sweeper)
        return [_objective(run, config.sweep.metric) if self._for_sweeper else None for run in runs]


def hand_over(sweep: SweepDir, members: Sequence[Member], wait: bool) -> int:
    """Start the runs here or on Slurm, and follow them if that is wanted; returns the command's exit code."""
    if not start_and_follow(sweep, members, wait):
        return 0
    return _conclude(sweep, [RunDir(Path(member.plan.run_dir)) for member in members])


def start_and_follow(sweep: SweepDir, members: Sequence[Member], wait: bool) -> bool:
    """Start the runs here or on Slurm, and follow them if that is wanted; returns whether they were followed."""
    runs = [RunDir(Path(member.plan.run_dir)) for member in members]
    if members[0].plan.scheduler == "local":
        agent, slots = start_here(sweep, members)
        what = f"{_count(runs)}, {slots} at a time on this machine"
        print(f"sweep {sweep.sweep_id}: {what} · {sweep.path}", flush=True)
        follow_batch(agent, runs)
        return True
    jobs = submit_all(sweep, members)
    arrays = f"array{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"
    print(f"submitted {_count(members)} as {arrays}: sweep {sweep.sweep_id} · {sweep.path}", flush=True)
    if wait:
        follow_jobs(runs, f"python -m launcher cancel {as_typed(sweep.path)}")
        return True
    for label, verb in (("state", "status"), ("stop", "cancel"), ("again", "resume --failed")):
        print(f"  {label:<7} python -m launcher {verb} {as_typed(sweep.path)}")
    return False


def start_here(sweep: SweepDir, members: Sequence[Member]) -> tuple[Foreground, int]:
    """Start the runs on this machine; returns their agent, and how many of them it runs at a time."""
    plan = members[0].plan
    gpus = [] if plan.training["device"] == "cpu" else gpus_here()
    slots = slots_here(plan, gpus, sweep.read()["sweep"]["parallel"])
    batch = sweep.new_batch([[member.plan.run_id for member in members]], slots)
    return Foreground.batch(sweep, batch, gpus), slots


def submit_all(sweep: SweepDir, members: Sequence[Member]) -> list[str]:
    """Hand the runs to Slurm; returns the ids of the arrays.

    Raises:
        SchedulerError: Slurm refused some; the words say how many it has taken, and what starts the others.
    """
    jobs: dict[str, int] = {}
    try:
        for array, job_id in submit(sweep, members):
            jobs[job_id] = array.runs
    except SchedulerError as error:
        later = f"submit the others later with: python -m launcher resume {as_typed(sweep.path)}"
        raise SchedulerError(f"{error} · {sum(jobs.values())} of {_count(members)} are submitted; {later}") from error
    warn_of_never(members[0].allocation)
    return list(jobs)


def _conclude(sweep: SweepDir, runs: Sequence[RunDir]) -> int:
    """Say how the sweep stands; returns the exit code that says how these runs of it have ended."""
    everything = [RunDir(path) for path in sweep.run_paths()]
    results = {run.run_id: read_result(run.result) for run in everything}
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(_outcomes(results.values()).items()))
    print(f"sweep {sweep.sweep_id}: {counts} · {sweep.path}")
    for line in _best(sweep, everything, list(results.values())):
        print(f"  {line}")
    code = exit_code(results[run.run_id] for run in runs)
    for label, verb in {"table": "status", **({"again": "resume"} if code else {})}.items():
        print(f"  {label:<7} python -m launcher {verb} {as_typed(sweep.path)}", flush=True)
    return code


def exit_code(results: Iterable[Result | None]) -> int:
    """What says how all these runs have ended."""
    outcomes = _outcomes(results)
    if outcomes[STOPPED]:
        return 130
    return 0 if outcomes[COMPLETED] == outcomes.total() else 1


def _outcomes(results: Iterable[Result | None]) -> Counter[str]:
    return Counter("not ended" if result is None else result.outcome for result in results)


def _best(sweep: SweepDir, runs: Sequence[RunDir], results: Sequence[Result | None]) -> list[str]:
    """The run that has reached the most, where more than one has reached anything."""
    metric, overrides = sweep.read()["sweep"]["metric"], sweep.overrides()
    found = [result.metrics.get(metric) if result else None for result in results]
    reached = [(value, run.run_id) for value, run in zip(found, runs) if isinstance(value, (int, float))]
    if len(reached) < 2:
        return []
    value, run_id = max(reached)
    return [f"highest {metric} {value:.4g}: {shlex.join(overrides[run_id])} ({run_id})"]


def _objective(run: SweepRun, metric: str) -> float | Exception:
    """What the sweeper learns of a run that has ended."""
    result = read_result(RunDir(Path(run.plan.run_dir)).result)
    if result is None:
        return RunFailed(f"run {run.plan.run_id} left no verdict")
    value = result.metrics.get(metric)
    if result.outcome != COMPLETED:
        return RunFailed(f"run {run.plan.run_id} {result.line()}")
    return float(value) if isinstance(value, (int, float)) else RunFailed(f"run {run.plan.run_id} has no '{metric}'")


def _preview(runs: Sequence[SweepRun]) -> str:
    """What a dry run of a sweep shows: every run, and the first one's plan."""
    rows = [(run.plan.run_id.rpartition("-")[2], shlex.join(run.overrides)) for run in runs]
    listing = table(("RUN", "OVERRIDES"), rows)
    members = [run.member for run in runs]
    plan = dataclasses.replace(runs[0].plan, directives=members[0].allocation.directives)
    head = [_count(runs)]
    if plan.scheduler == "slurm":
        found = arrays(members, sys.maxsize)
        packed = f", {found[0].longest} in an allocation" if members[0].packed else ""
        head.append(f"{len(found)} array{'s' if len(found) != 1 else ''}{packed}")
    return f"{' · '.join(head)}\n{listing}\n\nthe first of them\n\n{describe(plan)}"


def _count(runs: Sequence[Any]) -> str:
    return f"{len(runs)} run{'s' if len(runs) != 1 else ''}"


def _runs_dir(arguments: Arguments) -> Path:
    """Known before the first run is composed: the sweep's directory is part of what Hydra's sweepers are told."""
    words = [word for word in arguments.overrides if word.startswith("runs_dir=")]
    return Path(os.path.expanduser(compose(words, arguments.config_dirs).config.runs_dir)).absolute()
