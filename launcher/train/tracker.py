"""Reports a run's metrics to Weights & Biases and MLflow: ``python -m launcher.train.tracker RUN_DIR``.

A process of its own, started once per attempt by the agent of node 0: it reads what rank 0 writes to metrics.jsonl,
so trackers cannot hang or fail the training, and there is one tracked run, whatever the number of ranks. Another
attempt goes on with it, after the last iteration that it has. When standard input ends, the ranks have ended.

Slurm sends its signals to every process of a job. This one is deaf to them, but W&B's own process is ended by any, and
what it has not written or sent is lost. Then all is begun anew, with what the tracked run does not have.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from launcher.records.files import Record, parse_json_line, read_json, write_json
from launcher.records.rundir import RunDir

_LOOK_S = 1.0
_TRIES = 3


class Tracker(Protocol):
    """Where metrics go."""

    last: int
    """The last iteration that the tracked run has; -1 when it has none."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of one iteration."""
        ...

    def finish(self) -> None:
        """Report what is buffered."""
        ...


class WandbTracker:
    """A run of Weights & Biases that has the run's id."""

    def __init__(self, run: RunDir, settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        import wandb

        parts = OfflineParts(run)
        self._run = wandb.init(
            id=run.run_id, name=run.run_id, resume="allow", project=settings["project"], entity=settings["entity"],
            mode=settings["mode"], dir=str(run.path), config=dict(config),
        )  # fmt: skip
        self._parts = parts if self._run.offline else None
        self._part = Path(self._run.dir).parent.name
        self.last = parts.last if self._parts else self._run.starting_step - 1

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=iteration)

    def finish(self) -> None:
        self._run.finish()
        if self._parts is not None:
            self._parts.close(self._part, self.last)


class OfflineParts:
    """The directories that W&B leaves offline, one per attempt; `wandb sync` makes one run of them, by its id.

    A part that was not closed may hold less than it was told: it is removed, and the next one has its iterations too.
    """

    def __init__(self, run: RunDir) -> None:
        self._record = run.path / "tracked.json"
        known = read_json(self._record) or {"iteration": -1, "parts": []}
        self.last: int = known["iteration"]
        self._closed: list[str] = known["parts"]
        for part in run.path.glob("wandb/offline-run-*"):
            if part.name not in self._closed:
                shutil.rmtree(part)

    def close(self, part: str, last: int) -> None:
        """Remember that a part is whole, and ends with an iteration."""
        write_json(self._record, {"iteration": last, "parts": [*self._closed, part]})


class MlflowTracker:
    """A run of MLflow; found again by its tag, for MLflow gives its own ids."""

    def __init__(self, run: RunDir, settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(settings["uri"])
        found = self._client.get_experiment_by_name(settings["experiment"])
        experiment = found.experiment_id if found else self._client.create_experiment(settings["experiment"])
        known = self._client.search_runs([experiment], f"tags.launcher = '{run.run_id}'")
        new = known or [self._client.create_run(experiment, tags={"launcher": run.run_id}, run_name=run.run_id)]
        self._id = new[0].info.run_id
        if not known:
            for key, value in config.items():
                self._client.log_param(self._id, key, value)
        self.last = max((point.step for point in self._client.get_metric_history(self._id, "iteration")), default=-1)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(name, value, now, iteration) for name, value in metrics.items()])

    def finish(self) -> None:
        self._client.set_terminated(self._id)


class NewMetrics:
    """The records of metrics.jsonl, of all attempts.

    Each comes once, unless rank 0 begins and puts a new file in the old one's place: then all come that are in it.
    """

    def __init__(self, run: RunDir) -> None:
        self._path, self._offset, self._inode = run.metrics, 0, 0

    def read(self) -> Iterator[Record]:
        """Those that are new; a line that is still being written comes the next time."""
        for line in self._lines():
            record = parse_json_line(line)
            if record is not None and isinstance(record.get("iteration"), int):
                yield record

    def _lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            self._offset = self._offset if inode == self._inode else 0
            self._inode = inode
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        return whole.splitlines()


def main(arguments: list[str]) -> int:
    """Report until standard input ends, then what is left. What breaks is tried again by a process that is new."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    run, tries = arguments[0], int(arguments[1]) if len(arguments) > 1 else 1
    unchanged = dict(os.environ)  # W&B notes there how to reach its own process
    try:
        _follow(RunDir(Path(run)))
    except Exception:
        if tries == _TRIES:
            raise
        traceback.print_exc()
        again = [sys.executable, "-u", "-m", "launcher.train.tracker", run, str(tries + 1)]
        os.execve(sys.executable, again, unchanged)
    return 0


def _follow(run: RunDir) -> None:
    trackers, metrics, over = list(_trackers(run)), NewMetrics(run), False
    while not over:
        over = bool(select.select([sys.stdin], [], [], _LOOK_S)[0])
        for record in metrics.read():
            _report(trackers, record)
    for tracker in trackers:
        tracker.finish()


def _trackers(run: RunDir) -> Iterator[Tracker]:
    training = (read_json(run.plan) or {})["training"]
    tracking = training["tracking"]
    config = {"task": training["task"]["name"], **{key: training[key] for key in ("library", "seed", "num_envs")}}
    if tracking["wandb"]["project"] is not None:
        yield WandbTracker(run, tracking["wandb"], config)
    if tracking["mlflow"]["uri"] is not None:
        yield MlflowTracker(run, tracking["mlflow"], config)


def _report(trackers: list[Tracker], record: Record) -> None:
    numbers = {key: float(value) for key, value in record.items() if isinstance(value, (int, float))}
    for tracker in trackers:
        if record["iteration"] > tracker.last:
            tracker.log(record["iteration"], numbers)
            tracker.last = record["iteration"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
