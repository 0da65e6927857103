"""What a benchmark has found, in a few lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.records.bundle import parts_of
from launcher.records.files import Record
from launcher.records.seen import STARTUP


def describe_bundle(bundle: Record) -> str:
    """The lines, the first of which says what was measured."""
    run, extra = bundle["run"], bundle["extra"]
    ranks = f"{extra['world_size']} rank{'s' if extra['world_size'] != 1 else ''}"
    nodes = f"{extra['num_nodes']} node{'s' if extra['num_nodes'] != 1 else ''}"
    with_library = f" with {_library(run['framework'], extra['library'])}" if run["framework"] else ""
    what = f"{extra['benchmark']} of {run['task']}{with_library}: {ranks} on {nodes}"
    head = f"{what}, {extra['num_envs_per_rank']} environments each"
    return "\n".join([head, *(f"  {label:<12} {text}" for label, text in _lines(bundle))])


def _library(framework: str, library: str) -> str:
    return library if framework in library else f"{framework} of {library}"


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
