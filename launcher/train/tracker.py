"""Reports a run's metrics to Weights & Biases and MLflow: ``python -m launcher.train.tracker RUN_DIR``.

A process of its own, started once per attempt by the agent of node 0: it reads what rank 0 writes to metrics.jsonl,
so trackers cannot hang or fail the training, and there is one tracked run, whatever the number of ranks. It has the
run's id, so that another attempt goes on with it. SIGTERM: report what is left, and end.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from launcher.records.files import Record, parse_json_line, read_json, write_json
from launcher.records.rundir import RunDir

_LOOK_S = 1.0


class Tracker(Protocol):
    """Where metrics go."""

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

        self._run = wandb.init(
            id=run.run_id, name=run.run_id, resume="allow", project=settings["project"], entity=settings["entity"],
            mode=settings["mode"], dir=str(run.path), config=dict(config),
        )  # fmt: skip

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=iteration)

    def finish(self) -> None:
        self._run.finish()


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

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._id, name, value, step=iteration)

    def finish(self) -> None:
        self._client.set_terminated(self._id)


class NewMetrics:
    """The records of metrics.jsonl that have not been reported, over all attempts."""

    def __init__(self, run: RunDir) -> None:
        self._path, self._reported = run.metrics, run.path / "tracked.json"
        self._offset = 0
        self._last = int((read_json(self._reported) or {}).get("iteration", -1))

    def read(self) -> Iterator[Record]:
        """Those that are new, each once; a line that is still being written comes the next time."""
        for line in self._lines():
            record = parse_json_line(line)
            if record is not None and isinstance(record.get("iteration"), int) and record["iteration"] > self._last:
                self._last = record["iteration"]
                yield record
        write_json(self._reported, {"iteration": self._last})

    def _lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        return whole.splitlines()


def main(arguments: list[str]) -> int:
    """Report until SIGTERM, then what is left."""
    run, over = RunDir(Path(arguments[0])), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    trackers, metrics = list(_trackers(run)), NewMetrics(run)
    while not over.wait(_LOOK_S):
        _report(trackers, metrics)
    _report(trackers, metrics)
    for tracker in trackers:
        tracker.finish()
    return 0


def _trackers(run: RunDir) -> Iterator[Tracker]:
    training = (read_json(run.plan) or {})["training"]
    tracking = training["tracking"]
    config = {"task": training["task"]["name"], **{key: training[key] for key in ("library", "seed", "num_envs")}}
    if tracking["wandb"]["project"] is not None:
        yield WandbTracker(run, tracking["wandb"], config)
    if tracking["mlflow"]["uri"] is not None:
        yield MlflowTracker(run, tracking["mlflow"], config)


def _report(trackers: list[Tracker], metrics: NewMetrics) -> None:
    for record in metrics.read():
        numbers = {key: float(value) for key, value in record.items() if isinstance(value, (int, float))}
        for tracker in trackers:
            tracker.log(record["iteration"], numbers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
