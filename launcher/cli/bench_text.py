"""What all commands of ``bench`` have in common: what a benchmark does otherwise than a run, and how it is told."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.cli.start import as_typed
from launcher.errors import UserError
from launcher.records.bundle import STARTUP, parts_of, write_bundle
from launcher.records.files import Record, read_json
from launcher.records.result import read_result
from launcher.records.rundir import RunDir

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
    bundle, result = read_json(run.benchmark), read_result(run.result)
    if bundle is None and result is not None:  # its node went down between the two files
        write_bundle(run, result)
        bundle = read_json(run.benchmark)
    if bundle is None:
        raise UserError(f"the benchmark '{run.run_id}' has not ended: python -m launcher status {as_typed(run.path)}")
    return bundle


def describe_bundle(bundle: Record) -> str:
    """The lines, the first of which says what was measured."""
    run, extra = bundle["run"], bundle["extra"]
    ranks = f"{extra['world_size']} rank{'s' if extra['world_size'] != 1 else ''}"
    nodes = f"{extra['num_nodes']} node{'s' if extra['num_nodes'] != 1 else ''}"
    with_library = f" with {extra['library']}" if run["framework"] else ""
    what = f"{extra['benchmark']} of {run['task']}{with_library}: {ranks} on {nodes}"
    head = f"{what}, {extra['num_envs_per_rank']} environments each"
    return "\n".join([head, *(f"  {label:<12} {text}" for label, text in _lines(bundle))])


def _lines(bundle: Record) -> Iterator[tuple[str, str]]:
    extra = bundle["extra"]
    if bundle["run"]["status"] != "completed":
        yield bundle["run"]["status"], " · ".join(filter(None, [extra["cause"], extra["message"]]))
    if extra["benchmark"] == STARTUP:
        yield from _startup(bundle)
    elif bundle["runtime"] is None:
        yield "throughput", "nothing was measured"
    else:
        yield from _throughput(bundle)
    yield from _slowest(extra)


def _startup(bundle: Record) -> Iterator[tuple[str, str]]:
    phases = {name: phase["total_time_s"] for name, phase in bundle["phases"].items()}
    if phases:
        yield "rank 0", f"{sum(phases.values()):.2f} s from the launch to the first step"
    for name, seconds in phases.items():
        yield "", f"{seconds:7.2f} s  {name.replace('_', ' ')}"


def _throughput(bundle: Record) -> Iterator[tuple[str, str]]:
    runtime, extra = bundle["runtime"], bundle["extra"]
    total, done = runtime["total_fps"], runtime["iterations_completed"]
    alone, unit = extra["workload_scope"] == "rank0", "steps" if extra["workload_scope"] == "rank0" else "iterations"
    whose = "of rank 0, while all step" if alone else "of all ranks"
    if total is not None:
        yield "throughput", f"{total['mean']:,.0f} frames/s {whose}; single {unit} ± {total['std']:,.0f} over {done:,}"
    if alone:
        return
    mean = runtime["iteration_time_s"]["mean"]
    parts = parts_of(bundle)
    split = ", ".join(f"{name} {seconds / mean:.0%}" for name, seconds in parts.items())
    yield "iteration", f"{mean:.4g} s{f': {split}' if split else ''}"


def _slowest(extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where the others wait for somebody: by what each does alone."""
    name = "startup_s" if extra["benchmark"] == STARTUP else "collect_s"
    one = extra["ranks"].get(name)
    if one and extra["world_size"] > 1:
        what = {"startup_s": "start", "collect_s": "stepping"}[name]
        times = f"min {one['min']:.4g} s, median {one['median']:.4g} s, max {one['max']:.4g} s"
        yield "slowest", f"rank {one['slowest_rank']} on {one['slowest_host']} ({what} of the ranks: {times})"
