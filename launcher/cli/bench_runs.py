"""Runs that are benchmarks: what they do otherwise than others, and what has come of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from launcher.cli.start import as_typed
from launcher.cli.statuses import statuses_of
from launcher.errors import UserError
from launcher.records.bundle import bundle_of
from launcher.records.files import Record, read_json, write_json
from launcher.records.reading import Run
from launcher.records.result import FAILED, STOPPED, Result, read_result
from launcher.records.rundir import RunDir
from launcher.records.status import LOST

_DEFAULTS = (
    "wait=true", "max_iterations=50", "checkpoint.every=null", "watch.sample_seconds=1",
    "retry.preempted=0", "retry.time_limit=0", "retry.node_fail=0", "retry.crash=0", "retry.hang=0",
)  # fmt: skip
"""What a benchmark does otherwise than a run; the command line can change it."""


def benchmark_overrides(workload: str, words: Sequence[str]) -> list[str]:
    """The overrides of a benchmark: what it does otherwise than a run, and then what the user wants."""
    ends_early = any(word.startswith("task.solved") for word in words)  # which is refused, in words
    quiet = [] if ends_early else ["task.solved=null"]
    return [*_DEFAULTS, *quiet, f"bench.workload={workload}", *words]


def aside(wanted: bool) -> contextlib.AbstractContextManager[object]:
    """Have what is printed meanwhile go to standard error, where standard output is for a program."""
    return contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext()


def bundle_in(run: RunDir) -> Record:
    """The bundle of a benchmark.

    Raises:
        UserError: it is none, or it has not ended.
    """
    if not ((read_json(run.plan) or {}).get("training") or {}).get("bench"):
        raise UserError(f"run '{run.run_id}' is no benchmark: `python -m launcher bench training …` starts one")
    bundle = bundle_if_ended(run)
    if bundle is None:
        raise UserError(f"the benchmark '{run.run_id}' has not ended: python -m launcher status {as_typed(run.path)}")
    return bundle


def bundle_if_ended(run: RunDir) -> Record | None:
    """The bundle of a run that is a benchmark; made here where nobody was left to do it, as when its job was lost."""
    if run.benchmark.exists() or (result := _end_of(run)) is None:
        return read_json(run.benchmark)
    bundle = bundle_of(Run(run), result)
    with contextlib.suppress(OSError):  # the records may be somebody else's
        write_json(run.benchmark, bundle)
    return bundle


def _end_of(run: RunDir) -> Result | None:
    if (result := read_result(run.result)) is not None:
        return result
    status = statuses_of([run])[0]
    message = status.message or status.detail
    known = {FAILED: status.detail, STOPPED: "cancelled", LOST: "killed"}
    if status.state not in known:
        return None
    return Result(STOPPED if status.state == STOPPED else FAILED, known[status.state], message)
