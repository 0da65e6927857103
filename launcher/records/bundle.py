"""The result bundle of a benchmark: ``benchmark.json``, made from a run's records, however the run ended.

The top-level keys, and what is below them, are those of Isaac Lab's benchmark schema 1.4; what has no place there is in
``extra``. ``bundle.schema.json`` beside this file is its JSON schema, docs/benchmarks.md its description.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from launcher.records import checkpoints
from launcher.records.columns import is_number
from launcher.records.files import Record, read_json, write_json
from launcher.records.measured import PARTS, side_by_side, summary
from launcher.records.reading import Run, Try
from launcher.records.resources import resources_by_node
from launcher.records.result import COMPLETED, STOPPED, Result
from launcher.records.rundir import RunDir

SCHEMA_VERSION = "1.4"
STARTUP, RUNTIME, TRAINING = "startup", "runtime", "training"

_STATUS = {COMPLETED: "completed", STOPPED: "interrupted"}
_FRAMEWORK = {"skrl_jax": "skrl"}
_PHASES = ("app_launch", "python_imports", "process_group", "env_creation", "agent_creation", "first_step")
_PACKAGES = {
    "torch": "torch", "rsl_rl": "rsl-rl-lib", "rl_games": "rl-games", "skrl": "skrl", "jax": "jax", "numpy": "numpy",
    "gymnasium": "gymnasium", "mujoco": "mujoco", "envpool": "envpool",
}  # fmt: skip
_NOT_OURS = ("isaaclab", "isaacsim", "kit", "newton", "warp", "mjwarp", "sb3")
"""Versions that the schema asks for, and that nothing here has."""
_EMA_ALPHA = 0.1


def bundle_of(run: Run, result: Result) -> Record:
    """The bundle of a benchmark's newest attempt.

    Args:
        run: its records; whatever is missing among them is null in the bundle.
        result: how it ended.
    """
    attempt = run.attempts[-1] if run.attempts else None
    seen = _Seen(run, attempt)
    bundle = {
        "run": _identity(seen, result),
        "versions": _versions(run.provenance),
        "hardware": seen.machine,
        **(_startup(seen) if seen.workload == STARTUP else _measured(seen)),
        "extra": {**_topology(seen), **_ranks(seen), **_end(result)},
        "schema_version": SCHEMA_VERSION,
    }
    return _finite(bundle)


class _Seen:
    """What the records of an attempt say, in the forms that the parts of the bundle need."""

    def __init__(self, run: Run, attempt: Try | None) -> None:
        self.run, self.attempt = run, attempt
        training, resources = run.plan.get("training", {}), run.plan.get("resources", {})
        self.training: Record = training
        self.workload: str = (training.get("bench") or {}).get("workload", TRAINING)
        self.warmup: int = (training.get("bench") or {}).get("warmup", 0)
        self.nodes, self.per_node = int(resources.get("nodes", 1)), int(resources.get("nproc_per_node", 1))
        self.world_size = self.nodes * self.per_node
        said = read_json(attempt.directory.timings) if attempt else None
        self.ranks: list[Record] = said["ranks"] if said else []
        self.began = attempt.began if attempt else None
        self.machine = next((rank["machine"] for rank in self.ranks), None)
        self.busy = resources_by_node(list(attempt.samples()) if attempt else [])

    @property
    def all_ranks(self) -> bool:
        """Whether what is counted is the work of all ranks, in step; else it is rank 0's."""
        return self.workload == TRAINING

    def rows(self) -> list[Record]:
        """The metrics of the attempt, iteration by iteration."""
        number = self.attempt.number if self.attempt else None
        return [row for row in self.run.metrics.rows() if row["attempt"] == number and is_number(row.get("time"))]

    def measurement(self) -> Record | None:
        """Rank 0's; of a run that did not come to its end what metrics.jsonl tells, which is less exact."""
        if self.ranks:
            return self.ranks[0]["measured"]
        return _from_metrics(self.rows(), self.warmup, self.world_size) if self.all_ranks else None

    def phases(self, rank: Record) -> dict[str, float]:
        """Of a rank, seconds each; the first from the start of the attempt by node 0's clock."""
        launch = {} if self.began is None else {"app_launch": max(rank["began"] - self.began, 0.0)}
        known = {**launch, **rank["phases"]}
        return {name: known[name] for name in _PHASES if name in known}


def _from_metrics(rows: Sequence[Record], warmup: int, world_size: int) -> Record | None:
    told = [row for row in rows if is_number(row.get("iteration")) and is_number(row.get("env_steps"))]
    measured = [(before, row) for before, row in pairwise(told) if row["iteration"] > max(warmup, 1)]
    if not measured:
        return None
    series = {
        "iteration_s": [row["time"] - before["time"] for before, row in measured],
        "collect_s": [row["collect_time"] for _, row in measured if is_number(row.get("collect_time"))],
        "learn_s": [row["learn_time"] for _, row in measured if is_number(row.get("learn_time"))],
    }
    before, last = measured[-1]
    return summary(round((last["env_steps"] - before["env_steps"]) / world_size), series)


def _identity(seen: _Seen, result: Result) -> Record:
    training, library = seen.training, seen.training.get("library")
    last = max((row["time"] for row in seen.rows()), default=seen.began)
    ended = None if seen.began is None else max(seen.began + result.seconds, last or 0.0)
    learns, starts = seen.workload == TRAINING, seen.workload == STARTUP
    return {
        "run_id": seen.run.run_id,
        "framework": None if seen.workload == RUNTIME else _FRAMEWORK.get(str(library), library),
        "config": {
            "physics_backend": "gymnasium",
            "rendering_backend": "none",
            "presets": [] if seen.workload == RUNTIME else [library],
        },
        "task": training.get("task", {}).get("env"),
        "seed": training.get("seed"),
        "start_time_utc": _utc(seen.began),
        "end_time_utc": _utc(ended),
        "duration_s": 0.0 if seen.began is None or ended is None else ended - seen.began,
        "status": _STATUS.get(result.outcome, "crashed"),
        "num_envs": None if starts else _envs(seen) * (seen.world_size if learns else 1),
        "max_iterations": training.get("max_iterations") if learns else None,
    }


def _envs(seen: _Seen) -> int:
    return int(seen.training.get("num_envs", 0))


def _utc(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _versions(provenance: Record) -> Record:
    """From the machine of the submission, of the ranks' interpreter."""
    packages, git = provenance.get("packages") or {}, provenance.get("git") or {}
    return {
        **dict.fromkeys(_NOT_OURS),
        **{name: packages.get(package) for name, package in _PACKAGES.items()},
        "launcher": provenance.get("launcher"),
        "python": str((provenance.get("python") or {}).get("version") or "").split(" ")[0] or None,
        "cuda": provenance.get("cuda"),
        "driver": provenance.get("driver"),
        "git_commit": git.get("commit"),
        "git_branch": git.get("branch"),
        "git_dirty": bool(git.get("dirty")),
    }


def _startup(seen: _Seen) -> Record:
    phases = seen.phases(seen.ranks[0]) if seen.ranks else {}
    return {
        "phases": {name: {"total_time_s": seconds, "top_functions": []} for name, seconds in phases.items()},
        "config": {"top_n": 0, "whitelist": None},
    }


def _measured(seen: _Seen) -> Record:
    measured = seen.measurement()
    runtime = None if measured is None else _runtime(seen, measured)
    found = {"runtime": runtime, "resources": seen.busy.get(0)}
    return found if seen.workload == RUNTIME else {**found, **_learned(seen)}


def _runtime(seen: _Seen, measured: Record) -> Record:
    scale = seen.world_size if seen.all_ranks else 1
    phases = seen.phases(seen.ranks[0]) if seen.ranks else {}
    known = ("app_launch", "env_creation", "first_step", "python_imports")
    return {
        "startup_time_s": {**{name: phases.get(name) for name in known}, "task_config": None},
        "iterations_completed": measured["iterations"],
        "total_wall_time_s": measured["wall_s"],
        "steps_per_iteration": measured["frames"] * scale,
        "iteration_time_s": measured["iteration_s"],
        "collection_fps": _times(measured["collection_fps"], scale),
        "total_fps": _times(measured["total_fps"], scale),
        "iterations_per_s": measured["iterations_per_s"],
        "environment_step_timing": None if seen.all_ranks else _step_timing(measured),
    }


def _times(rate: Record | None, factor: int) -> Record | None:
    return rate and {name: value * factor for name, value in rate.items()}


def _step_timing(measured: Record) -> Record:
    return {
        "environment_step_time_s": measured["collect_s"],
        "environment_step_fps": measured["collection_fps"],
        "simulation_step_time_s": None,
        "outside_simulation_step_time_s": None,
        "outside_simulation_step_fraction": None,
        "environment_step_calls": measured["iterations"],
        "simulation_step_calls": None,
        "measurement_mode": "host_return",
    }


def _learned(seen: _Seen) -> Record:
    rows = seen.rows()
    curves = {name: _curve([row.get(key) for row in rows]) for name, key in _CURVES.items()}
    saved = checkpoints.newest_whole(seen.run.records.checkpoints)
    return {
        "learning": {"ema_alpha": _EMA_ALPHA, **curves, "success_rate": None},
        "success_rate": None,
        "checkpoint_path": None if saved is None else str(saved.path),
        "video_path": None,
    }


_CURVES = {"reward": "return_mean", "ep_length": "length_mean"}


def _curve(values: Sequence[Any]) -> Record | None:
    """None where no episode has ended."""
    known = [float(value) for value in values if is_number(value)]
    if not known:
        return None
    smooth = known[0]
    for value in known:
        smooth += _EMA_ALPHA * (value - smooth)
    return {"final_raw": known[-1], "final_ema": smooth, "series_per_iter": known}


def _topology(seen: _Seen) -> Record:
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


def _ranks(seen: _Seen) -> Record:
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


def _timings(seen: _Seen, rank: Record) -> dict[str, float]:
    """Of one rank: the phases of its start and their sum, and the mean of each part of an iteration."""
    phases, measured = seen.phases(rank), rank["measured"]
    timings = {**phases, "startup_s": sum(phases.values())}
    if measured is None or seen.workload == STARTUP:
        return timings
    return {**timings, **{name: measured[name]["mean"] for name in PARTS if measured[name] is not None}}


def parts_of(bundle: Record) -> dict[str, float]:
    """What an iteration of rank 0's consists of, seconds, in the order in which it goes; empty where that is not known.

    Where collectives could not be timed, there is no ``synchronising``, and they are in ``learning``.
    """
    rank = next(iter(bundle["extra"]["per_rank"]), {})
    if "iteration_s" not in rank or "learn_s" not in rank:
        return {}
    sync = {"synchronising": rank["sync_s"]} if "sync_s" in rank else {}
    learning = max(rank["learn_s"] - rank.get("sync_s", 0.0), 0.0)
    parts = {"stepping": rank["collect_s"], "learning": learning, **sync}
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
