"""The result bundle of a benchmark: ``benchmark.json``, made from a run's records, however the run ended.

The top-level keys, and what is below them, are those of Isaac Lab's benchmark schema 1.4; what has no place there is in
``extra``. ``bundle.schema.json`` beside this file is its JSON schema, docs/benchmarks.md its description.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from launcher.records import checkpoints, isaaclab
from launcher.records.columns import is_number
from launcher.records.files import Record, write_json
from launcher.records.measured import PARTS, side_by_side
from launcher.records.reading import Run
from launcher.records.result import COMPLETED, STOPPED, Result
from launcher.records.rundir import RunDir
from launcher.records.seen import RUNTIME, STARTUP, TRAINING, Seen

SCHEMA_VERSION = "1.4"

_STATUS = {COMPLETED: "completed", STOPPED: "interrupted"}
_PACKAGES = {
    "torch": "torch", "rsl_rl": "rsl-rl-lib", "rl_games": "rl-games", "skrl": "skrl", "jax": "jax", "numpy": "numpy",
    "gymnasium": "gymnasium", "mujoco": "mujoco", "envpool": "envpool",
}  # fmt: skip
_EMA_ALPHA = 0.1


def bundle_of(run: Run, result: Result) -> Record:
    """The bundle of a benchmark's newest attempt.

    Args:
        run: its records; whatever is missing among them is null in the bundle.
        result: how it ended.
    """
    attempt = run.attempts[-1] if run.attempts else None
    seen = Seen(run, attempt)
    versions, others = isaaclab.versions(_versions(run.provenance), seen.isaaclab)
    said = isaaclab.part_of(seen.isaaclab, "extra") or {}
    bundle = {
        "run": _identity(seen, result),
        "versions": versions,
        "hardware": seen.machine,
        **(_startup(seen) if seen.workload == STARTUP else _measured(seen)),
        "extra": {**said, **_topology(seen), **_ranks(seen), "versions": others, **_end(result)},
        "schema_version": SCHEMA_VERSION,
    }
    return _finite(bundle)


def _identity(seen: Seen, result: Result) -> Record:
    training = seen.training
    last = max((row["time"] for row in seen.rows()), default=seen.began)
    ended = None if seen.began is None else max(seen.began + result.seconds, last or 0.0)
    learns, starts = seen.workload == TRAINING, seen.workload == STARTUP
    return {
        "run_id": seen.run.run_id,
        "framework": seen.framework,
        "config": seen.config,
        "task": training.get("task", {}).get("env"),
        "seed": training.get("seed"),
        "start_time_utc": _utc(seen.began),
        "end_time_utc": _utc(ended),
        "duration_s": 0.0 if seen.began is None or ended is None else ended - seen.began,
        "status": _STATUS.get(result.outcome, "crashed"),
        "num_envs": None if starts else _envs(seen) * (seen.world_size if learns else 1),
        "max_iterations": training.get("max_iterations") if learns else None,
    }


def _envs(seen: Seen) -> int:
    return int(seen.training.get("num_envs", 0))


def _utc(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _versions(provenance: Record) -> Record:
    """From the machine of the submission, of the ranks' interpreter."""
    packages, git = provenance.get("packages") or {}, provenance.get("git") or {}
    return {
        **{name: packages.get(package) for name, package in _PACKAGES.items()},
        "launcher": provenance.get("launcher"),
        "python": str((provenance.get("python") or {}).get("version") or "").split(" ")[0] or None,
        "cuda": provenance.get("cuda"),
        "driver": provenance.get("driver"),
        "git_commit": git.get("commit"),
        "git_branch": git.get("branch"),
        "git_dirty": bool(git.get("dirty")),
    }


def _startup(seen: Seen) -> Record:
    phases = seen.phases(seen.ranks[0]) if seen.ranks else {}
    return {
        "phases": {
            name: {"total_time_s": seconds, "top_functions": isaaclab.top_functions(seen.isaaclab, name)}
            for name, seconds in phases.items()
        },
        "config": isaaclab.part_of(seen.isaaclab, "config") or {"top_n": 0, "whitelist": None},
    }


def _measured(seen: Seen) -> Record:
    measured = seen.measurement()
    runtime = None if measured is None else _runtime(seen, measured)
    found = {"runtime": runtime, "resources": seen.resources}
    return found if seen.workload == RUNTIME else {**found, **_learned(seen)}


def _runtime(seen: Seen, measured: Record) -> Record:
    scale = seen.world_size if seen.all_ranks else 1
    phases = seen.phases(seen.ranks[0]) if seen.ranks else {}
    known = ("app_launch", "env_creation", "first_step", "python_imports", "task_config")
    return {
        "startup_time_s": {name: phases.get(name) for name in known},
        "iterations_completed": measured["iterations"],
        "total_wall_time_s": measured["wall_s"],
        "steps_per_iteration": measured["frames"] * scale,
        "iteration_time_s": measured["iteration_s"],
        "collection_fps": _times(measured["collection_fps"], scale),
        "total_fps": _times(measured["total_fps"], scale),
        "iterations_per_s": measured["iterations_per_s"],
        "environment_step_timing": isaaclab.part_of(seen.isaaclab, "runtime", "environment_step_timing")
        or (None if seen.all_ranks else _step_timing(measured, seen.warmup)),
    }


def _times(rate: Record | None, factor: int) -> Record | None:
    return rate and {name: value * factor for name, value in rate.items()}


def _step_timing(measured: Record, warmup: int) -> Record:
    return {
        "environment_step_time_s": measured["collect_s"],
        "environment_step_fps": measured["collection_fps"],
        "simulation_step_time_s": None,
        "outside_simulation_step_time_s": None,
        "outside_simulation_step_fraction": None,
        "environment_step_calls": measured["iterations"],
        "simulation_step_calls": None,
        "measurement_mode": "host_return",
        "warmup_steps": warmup,
    }


def _learned(seen: Seen) -> Record:
    rows = seen.rows()
    theirs = isaaclab.part_of(seen.isaaclab, "learning") or {}
    curves = {name: _curve([row.get(key) for row in rows]) or theirs.get(name) for name, key in _CURVES.items()}
    saved = checkpoints.newest_whole(seen.run.records.checkpoints)
    return {
        "learning": {
            "ema_alpha": _EMA_ALPHA,
            **curves,
            "success_rate": theirs.get("success_rate"),
        },
        "success_rate": isaaclab.part_of(seen.isaaclab, "success_rate"),
        "checkpoint_path": None if saved is None else str(saved.path),
        "video_path": None,
    }


_CURVES = {"reward": "return_mean", "ep_length": "length_mean"}


def _curve(values: Sequence[Any]) -> Record | None:
    """None where no episode has ended; Isaac Lab has zeros and an empty series there, and its tools rely on it."""
    known = [float(value) for value in values if is_number(value)]
    if not known:
        return None
    smooth = known[0]
    for value in known:
        smooth += _EMA_ALPHA * (value - smooth)
    return {"final_raw": known[-1], "final_ema": smooth, "series_per_iter": known}


def _topology(seen: Seen) -> Record:
    return {
        "distributed": seen.world_size > 1,
        "world_size": seen.world_size,
        "local_world_size": seen.per_node,
        "num_nodes": seen.nodes,
        "workload_scope": "global" if seen.all_ranks else "rank0",
        "measurement_scope": "rank0_process",
        "gpu_measurement_scope": "rank0_node",
        "num_envs_per_rank": _envs(seen),
        "benchmark": seen.workload,
        "library": seen.training.get("library"),
        "scheduler": seen.run.plan.get("scheduler"),
        "device": seen.training.get("device"),
        "warmup": seen.warmup,
        "start_method": seen.run.plan.get("start", {}).get("method"),
    }


def _ranks(seen: Seen) -> Record:
    """Every rank's own timings, side by side and one by one, and every node's resources."""
    hosts = {rank["rank"]: rank["host"] for rank in seen.ranks}
    by_rank = {rank["rank"]: _timings(seen, rank) for rank in seen.ranks}
    names = dict.fromkeys(name for timings in by_rank.values() for name in timings)
    compared = {
        name: side_by_side({rank: one[name] for rank, one in by_rank.items() if name in one}, hosts) for name in names
    }
    machines = {rank["rank"] // seen.per_node: rank["machine"] for rank in seen.ranks if rank["machine"]}
    listed = seen.attempt.hosts if seen.attempt else []
    nodes = [
        {"node": node, "host": host, "hardware": machines.get(node), "resources": seen.busy.get(node)}
        for node, host in enumerate(listed)
    ]
    return {
        "ranks": compared,
        "per_rank": [{"rank": rank, "host": hosts[rank], **timings} for rank, timings in by_rank.items()],
        "nodes": nodes,
    }


def _timings(seen: Seen, rank: Record) -> dict[str, float]:
    """Of one rank: the phases of its start and their sum, and the mean of each part of an iteration."""
    phases, measured = seen.phases(rank), rank["measured"]
    timings = {**phases, "startup_s": sum(phases.values())}
    if measured is None or seen.workload == STARTUP:
        return timings
    return {**timings, **{name: measured[name]["mean"] for name in PARTS if measured[name] is not None}}


def parts_of(bundle: Record) -> dict[str, float]:
    """What an iteration of rank 0's consists of, seconds, in the order in which it goes; empty where that is not known.

    Where collectives could not be timed, there is no ``synchronising``, and they are in ``learning``. Those that take
    longer than the update were not all in it: Isaac Lab's benchmark has some while it steps.
    """
    rank = next(iter(bundle["extra"]["per_rank"]), {})
    if "iteration_s" not in rank or "learn_s" not in rank:
        return {}
    sync = {"synchronising": rank["sync_s"]} if "sync_s" in rank else {}
    learning = rank["learn_s"] - rank.get("sync_s", 0.0)
    stepping = max(rank["collect_s"] + min(learning, 0.0), 0.0)
    parts = {"stepping": stepping, "learning": max(learning, 0.0), **sync}
    return {**parts, "other": max(rank["iteration_s"] - sum(parts.values()), 0.0)}


def _end(result: Result) -> Record:
    return {
        "outcome": result.outcome,
        "cause": result.cause,
        "message": result.message,
        "failed_rank": result.rank,
        "failed_host": result.host,
        "exit_code": result.exit_code,
        "hint": result.hint,
    }


def _finite(value: Mapping[str, Any]) -> Record:
    """Without what JSON has no word for."""

    def plain(one: Any) -> Any:
        if isinstance(one, Mapping):
            return {key: plain(item) for key, item in one.items()}
        if isinstance(one, list):
            return [plain(item) for item in one]
        return None if isinstance(one, float) and not math.isfinite(one) else one

    return plain(value)


def write_bundle(run: RunDir, result: Result) -> None:
    """Write the bundle of a benchmark that has ended into its records."""
    write_json(run.benchmark, bundle_of(Run(run), result))
