"""Runs from Python, as in a notebook: the functions that the command line is made of, without its output.

``from launcher import submit, submit_sweep, wait, load_run, load_sweep, status, cancel``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from launcher.cli.arguments import Arguments
from launcher.cli.cancel import cancel_run, cancel_sweep
from launcher.cli.following import require_verdict, until_all_over, until_over
from launcher.cli.start import composed_of
from launcher.cli.statuses import statuses_of
from launcher.cli.sweep import Sweeping, start_here, submit_all
from launcher.config.literals import quote
from launcher.config.multirun import wants_objectives
from launcher.errors import UserError
from launcher.records import rundir
from launcher.records.reading import Run, Sweep, load_run, load_sweep
from launcher.records.rundir import RunDir
from launcher.records.status import Status
from launcher.records.sweepdir import SweepDir
from launcher.submission.arrays import Member
from launcher.submission.local import Foreground
from launcher.submission.new_run import new_run, submit_new
from launcher.submission.prepare import plan_here
from launcher.submission.sweep import SweepRun, require

Words = str | Mapping[str, Any]


def submit(*words: Words, config_dirs: Sequence[str | Path] = (), config_name: str | None = None) -> Run:
    """Start a run, on Slurm or here, and return at once. Nothing is printed but warnings.

    Args:
        words: what stands on the command line, such as ``"cluster=a100x2"``, or mappings of keys to values, such as
            ``{"seed": 3, "cluster.nodes": 2}``, whose texts arrive as they are, whatever they hold. Later ones win.
        config_dirs: directories with more tasks, clusters and libraries, as ``--config-dir``.
        config_name: a whole configuration from one of them, as ``--config-name``.

    Returns:
        The run. It is read when it is asked for something, and then stays as it was: :func:`wait` and ``load_run``
        read it anew.

    Raises:
        UserError: a mistake in the configuration. Nothing is left of the run.
        SchedulerError: Slurm refused the job, or is not there. Nothing is left of the run.

    A run on this machine is a child of this Python: when that ends, the run saves and stops.
    """
    composed = composed_of(Arguments(_typed(words), [str(path) for path in config_dirs], config_name))
    if composed.config.dry_run:
        raise UserError("dry_run=true starts nothing: `python -m launcher plan` shows what would happen")
    plan = plan_here(composed.config)
    if plan.scheduler == "none":
        raise UserError("without a scheduler nothing can be submitted: `python -m launcher commands` says what to type")
    run = new_run(plan, composed)
    if plan.scheduler == "slurm":
        submit_new(plan, run)
    else:
        Foreground.run(run)
    return wait(run.path) if composed.config.wait else load_run(run.path)


def submit_sweep(
    *words: Words, runs: Sequence[Words | Sequence[Words]] | None = None, config_dirs: Sequence[str | Path] = ()
) -> Sweep:
    """Start many runs at once, on Slurm as one array, or here, as ``-m`` does; returns at once.

    Args:
        words: what all runs have, as of :func:`submit`. Without `runs` a text may have several values, as on the
            command line (``"seed=1,2,3"``): there is a run for every combination.
        runs: what each run has besides: one text or mapping, or several of them.
        config_dirs: as of :func:`submit`.

    Returns:
        The sweep, in its order: a sequence of runs, with a ``table`` of what came of them.

    Raises:
        UserError: a mistake in the configuration of any run. Nothing is left of the sweep.
        SchedulerError: Slurm is not there, or refused some of the runs. These stand in the sweep's directory as not
            submitted, and the words say what submits them.

    Runs on this machine are children of this Python: when that ends, they save and stop.
    """
    common, mine = _typed(words), [str(path) for path in config_dirs]
    if wants_objectives(common):
        raise UserError("a sweeper that learns from its runs waits for them: start it with `python -m launcher -m`")
    sweeping = Sweeping(Arguments(common, mine), require, _started, _refuse_dry_run)
    if runs is None:
        sweeping.run()
    elif not runs:
        raise UserError("runs=[] is a sweep without runs")
    else:
        sweeping.launch([[*common, *_typed([one] if isinstance(one, (str, Mapping)) else one)] for one in runs], 0)
    return load_sweep(sweeping.directory.path)


def _started(sweep: SweepDir, members: Sequence[Member], wanted: bool) -> int:
    if members[0].plan.scheduler == "local":
        start_here(sweep, members)
    else:
        submit_all(sweep, members)
    if wanted:
        wait(load_sweep(sweep.path))
    return 0


def _refuse_dry_run(runs: Sequence[SweepRun]) -> None:
    raise UserError("dry_run=true starts nothing: `python -m launcher -m … dry_run=true` shows what would happen")


@overload
def wait(run: Sweep, *, timeout: float | None = None) -> Sweep: ...


@overload
def wait(run: Run | str | Path, runs_dir: str | Path = "runs", *, timeout: float | None = None) -> Run: ...


def wait(run: Run | Sweep | str | Path, runs_dir: str | Path = "runs", *, timeout: float | None = None) -> Run | Sweep:
    """Wait until a run, or each run of a sweep, has ended, over all requeues; returns it, read anew.

    Args:
        run: what :func:`submit`, :func:`submit_sweep`, ``load_run`` or ``load_sweep`` returned, or what names a run.
        runs_dir: where the runs are; of no account for a run, a sweep, or a directory.
        timeout: seconds to wait at most; default: for ever.

    Raises:
        TimeoutError: it has not ended by then, and goes on.
        LauncherError: a run ended and left no verdict; one that failed has it, in ``result``. Not of a sweep: there a
            run without a verdict has no ``result``, and :func:`status` says what is known.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    if isinstance(run, Sweep):
        records = [one.records for one in run]
        for going in until_all_over(records, lambda: _require_time(run.sweep_id, deadline)):
            _require_time(run.sweep_id, deadline, f"not over: {len(going)} of {len(records)} runs go on")
        return load_sweep(run.records.path)
    records = _records(run, runs_dir)
    for status in until_over(records, lambda: _require_time(records.run_id, deadline)):
        _require_time(records.run_id, deadline, status.state)
    require_verdict(records)
    return load_run(records.path)


def _require_time(name: str, deadline: float | None, state: str = "not over") -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise TimeoutError(f"{name} is {state}")


@overload
def status(run: Sweep) -> list[Status]: ...


@overload
def status(run: Run | str | Path, runs_dir: str | Path = "runs") -> Status: ...


def status(run: Run | Sweep | str | Path, runs_dir: str | Path = "runs") -> Status | list[Status]:
    """What a run does, or each run of a sweep, by the records and by what Slurm says; arguments as of :func:`wait`."""
    if isinstance(run, Sweep):
        return statuses_of([one.records for one in run])
    return statuses_of([_records(run, runs_dir)])[0]


def cancel(run: Run | Sweep | str | Path, runs_dir: str | Path = "runs", *, now: bool = False) -> None:
    """Let a run, or all runs of a sweep, save and stop; what waits does not start.

    Args:
        run: as of :func:`wait`.
        runs_dir: as of :func:`wait`.
        now: do not let them save.

    Raises:
        UserError: nothing of it waits or runs.
        SchedulerError: Slurm cannot be reached.
    """
    if isinstance(run, Sweep):
        cancel_sweep(run.records, now)
    else:
        cancel_run(_records(run, runs_dir), now)


def _records(run: Run | str | Path, runs_dir: str | Path) -> RunDir:
    return run.records if isinstance(run, Run) else rundir.find(Path(os.path.expanduser(runs_dir)).absolute(), str(run))


def _typed(words: Sequence[Words]) -> list[str]:
    """The words as they would stand on a command line."""
    return [override for one in words for override in ([one] if isinstance(one, str) else _overrides(one))]


def _overrides(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Keys and values as words of a command line; a mapping within stands for its keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _overrides(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={_literal(value)}"


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_literal, value))}]"
    if isinstance(value, (str, Path)):
        return quote(str(value))
    raise UserError(f"{value!r} is no value of a configuration: give text, a number, true, false, None, or a list")
