"""Runs from Python, as in a notebook: the functions that the command line is made of, without its output.

``from launcher import submit, wait, load_run, load_sweep, status, cancel``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.cli.arguments import Arguments
from launcher.cli.cancel import cancel_run
from launcher.cli.following import require_verdict, until_over
from launcher.cli.start import composed_of
from launcher.cli.statuses import statuses_of
from launcher.config.literals import quote
from launcher.errors import UserError
from launcher.records import rundir
from launcher.records.reading import Run, load_run
from launcher.records.rundir import RunDir
from launcher.records.status import Status
from launcher.submit.local import Foreground
from launcher.submit.new_run import new_run, submit_new
from launcher.submit.prepare import plan_here

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
    overrides = [override for one in words for override in ([one] if isinstance(one, str) else _overrides(one))]
    composed = composed_of(Arguments(overrides, [str(path) for path in config_dirs], config_name))
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


def wait(run: Run | str | Path, runs_dir: str | Path = "runs", *, timeout: float | None = None) -> Run:
    """Wait until a run has ended, over all its requeues; returns it, read anew.

    Args:
        run: what :func:`submit` or ``load_run`` returned, or what names a run there.
        runs_dir: where the runs are; of no account for a run, or a directory.
        timeout: seconds to wait at most; default: for ever.

    Raises:
        TimeoutError: it has not ended by then. The run goes on.
        LauncherError: it ended and left no verdict; a run that failed has one, in ``result``.
    """
    records = _records(run, runs_dir)
    deadline = None if timeout is None else time.monotonic() + timeout
    for status in until_over(records, lambda: _require_time(records, deadline)):
        _require_time(records, deadline, status.state)
    require_verdict(records)
    return load_run(records.path)


def _require_time(run: RunDir, deadline: float | None, state: str = "not over") -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise TimeoutError(f"run {run.run_id} is {state}")


def status(run: Run | str | Path, runs_dir: str | Path = "runs") -> Status:
    """What a run does, by its records and by what Slurm says of its job; arguments as of :func:`wait`."""
    return statuses_of([_records(run, runs_dir)])[0]


def cancel(run: Run | str | Path, runs_dir: str | Path = "runs") -> None:
    """Let a run save and stop; arguments as of :func:`wait`.

    Raises:
        UserError: it does not wait or run.
        SchedulerError: Slurm cannot be reached.
    """
    cancel_run(_records(run, runs_dir))


def _records(run: Run | str | Path, runs_dir: str | Path) -> RunDir:
    return run.records if isinstance(run, Run) else rundir.find(Path(runs_dir).expanduser().absolute(), str(run))


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
