"""What the records of a benchmark's attempt say, in the forms that the parts of its bundle need."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from launcher.records import isaaclab
from launcher.records.columns import is_number
from launcher.records.files import Record, read_json
from launcher.records.measured import summary
from launcher.records.reading import Run, Try
from launcher.records.resources import resources_by_node

STARTUP, RUNTIME, TRAINING = "startup", "runtime", "training"

_FRAMEWORK = {"skrl_jax": "skrl"}
_NO_GPU = {
    "gpu_util_pct": {"mean": 0.0, "std": 0.0, "peak": None},
    "gpu_mem_gb": {"mean": 0.0, "std": 0.0, "peak": 0.0},
}


class Seen:
    """One attempt, seen through its records; whatever is missing among them is None."""

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
        self.isaaclab = isaaclab.own_bundle(attempt.directory.path) if attempt else None
        """What Isaac Lab says itself, where it has measured its own task."""

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
        """Of a rank, seconds each; the first from the start of the attempt by node 0's clock.

        It is called what Isaac Lab calls the start of its simulation, unless the rank has started one itself.
        """
        phases: dict[str, float] = rank["phases"]
        name = "launch" if "app_launch" in phases else "app_launch"
        return phases if self.began is None else {name: max(rank["began"] - self.began, 0.0), **phases}

    @property
    def framework(self) -> str | None:
        """The library that learns; None where none does."""
        library, theirs = self.training.get("library"), self.training.get("rl_library")
        if self.workload == RUNTIME or (self.workload == STARTUP and theirs):
            return None
        return theirs or _FRAMEWORK.get(str(library), library)

    @property
    def config(self) -> Record:
        """What simulates and draws; of Isaac Lab's own tasks only Isaac Lab knows."""
        if theirs := isaaclab.part_of(self.isaaclab, "run", "config"):
            return theirs
        known = self.training.get("rl_library") is None
        presets = [] if self.workload == RUNTIME or not known else [self.training.get("library")]
        return {"physics_backend": "gymnasium" if known else None, "rendering_backend": "none", "presets": presets}

    @property
    def resources(self) -> Record | None:
        """Of rank 0's node. Where its ranks compute on no GPU they use none of it, as Isaac Lab has it, too."""
        busy = self.busy.get(0)
        unused = _NO_GPU if busy and self.machine and not self.machine["gpu_devices"] else {}
        return busy and {name: unused.get(name) if value is None else value for name, value in busy.items()}


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
