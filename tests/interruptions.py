"""Ways to interrupt a run that trains on two nodes, and the moment when it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launcher.records.files import read_json
from tests.survival import Disturbed
from tests.test_local import metrics_of


@dataclass(frozen=True)
class Interruption:
    """What is done to a run, on one of its hosts where there is a choice, and what the verdict has to call it."""

    strike: Callable[[Disturbed, str], object]
    cause: str
    cause_at_node_0: str = ""

    def expected(self, node: int) -> str:
        return self.cause if node else self.cause_at_node_0 or self.cause


_DOWN = ("state=down", "reason=test")
"""A node of the sandbox comes back by itself at once (ReturnToService=2), and the job has lost it nevertheless."""
INTERRUPTIONS = {
    "preemption": Interruption(lambda run, _: run.take_nodes(), "preempted"),
    "scontrol requeue": Interruption(lambda run, _: run.scontrol("requeue", run.job_id), "requeued"),
    "rank killed": Interruption(lambda run, host: run.kill("rank", host), "crash"),
    "torchrun killed": Interruption(lambda run, host: run.kill("torchrun", host), "crash"),
    "agent killed": Interruption(lambda run, host: run.kill("agent", host), "node_lost", cause_at_node_0="killed"),
    "node set down": Interruption(lambda run, host: run.scontrol("update", f"nodename={host}", *_DOWN), "node_lost"),
}


def first_iteration_of(run: Disturbed, attempt: Path) -> float | None:
    """When the newest attempt recorded its first iteration (seconds since the epoch); None while it has none."""
    start = read_json(attempt / "rendezvous.json")
    if start is None:
        return None
    return next((line["time"] for line in metrics_of(run.run) if line["time"] > start["time"]), None)


def goes_on_after(run: Disturbed, attempt: Path) -> bool:
    """Whether an attempt after this one trains, or has ended the run."""
    assert run.newest == attempt or not (run.run / "result.json").exists() or run.end()["outcome"] == "completed"
    return run.newest != attempt and first_iteration_of(run, run.newest) is not None
