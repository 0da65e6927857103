"""Reading a run from Python: ``load_run``. All that it needs is the run's directory."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from launcher.errors import UserError
from launcher.records import rundir, sweepdir
from launcher.records.columns import Table, is_number
from launcher.records.files import Record, last_json_line, read_json, read_json_lines, spread_json_lines
from launcher.records.notes import Note, notes_in
from launcher.records.overrides import Value, varying
from launcher.records.result import Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.records.sweepdir import SweepDir


def load_run(run: str | Path, runs_dir: str | Path = "runs", *, most_lines: int | None = None) -> Run:
    """What there is on record of a run, whether it has ended or not.

    Args:
        run: its id, a unique beginning of it, its directory, or its Slurm job's id.
        runs_dir: where the runs are; of no account for a directory.
        most_lines: of metrics.jsonl, and of each file of samples, take about so many lines, evenly spread;
            default: all.

    Raises:
        UserError: there is no such run, or more than one.
    """
    return Run(rundir.find(Path(os.path.expanduser(runs_dir)).absolute(), str(run)), most_lines)


def load_sweep(sweep: str | Path, runs_dir: str | Path = "runs", *, most_lines: int | None = None) -> Sweep:
    """The runs of a sweep, in its order. Arguments as of :func:`load_run`.

    Raises:
        UserError: there is no such sweep, or more than one.
    """
    return Sweep(find_sweep(Path(os.path.expanduser(runs_dir)).absolute(), str(sweep)), most_lines)


def find_sweep(runs_dir: Path, text: str) -> SweepDir:
    """The sweep that a person means, as :func:`launcher.records.sweepdir.find`.

    Raises:
        UserError: there is none, or more than one.
    """
    found = sweepdir.find(runs_dir, text)
    if found is None:
        raise UserError(f"there is no sweep '{text}' in '{runs_dir}'; `python -m launcher status` lists them")
    return found


@dataclass(frozen=True)
class Try:
    """An attempt: one start of the ranks."""

    directory: Attempt

    @property
    def number(self) -> int:
        return self.directory.number

    @cached_property
    def start(self) -> Record:
        """Who took part, and since when: ``hosts``, ``time`` (seconds since the epoch), ``resumed_at`` (iterations that
        were done), ``job_id``. Empty where the ranks were never started."""
        return read_json(self.directory.rendezvous) or {}

    @cached_property
    def events(self) -> list[Record]:
        """What the agents did and saw; each has ``time`` (seconds since the epoch) and ``event``."""
        return list(read_json_lines(self.directory.events))

    @cached_property
    def verdict(self) -> Result | None:
        """How it ended; None while it goes on, and where its node 0 was cut off."""
        return read_result(self.directory.verdict)

    @cached_property
    def began(self) -> float | None:
        """Seconds since the epoch; None where nothing was written of it."""
        times = [*(event.get("time") for event in self.events[:1]), self.start.get("time")]
        return next(filter(is_number, times), None)

    @cached_property
    def hosts(self) -> list[str]:
        """The hosts of the job, in the order of its nodes; the spare ones among them."""
        asked = (event["hosts"] for event in self.events if event.get("event") == "attempt" and event.get("hosts"))
        return list(next(asked, self.start.get("hosts") or []))

    def samples(self, most_lines: int | None = None) -> Iterator[Record]:
        """How busy its nodes were: the lines of the files, with ``attempt``, ``node`` and ``host``."""
        for path in sorted(self.directory.path.glob("samples-*.jsonl"), key=_node):
            place = {"attempt": self.number, "node": _node(path), "host": self._host(_node(path))}
            yield from ({**place, **line} for line in spread_json_lines(path, most_lines))

    def _host(self, node: int) -> str:
        return self.hosts[node] if node < len(self.hosts) else f"node {node}"


def _node(path: Path) -> int:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


@dataclass(frozen=True)
class Run:
    """What is on record of a run; each part is read when it is first asked for."""

    records: RunDir
    """Where everything stands."""
    most_lines: int | None = None

    @property
    def run_id(self) -> str:
        return self.records.run_id

    @cached_property
    def plan(self) -> Record:
        """What was decided: resources, environment, the configuration of the training."""
        return read_json(self.records.plan) or {}

    @cached_property
    def config(self) -> str:
        """What was asked for, in YAML."""
        return _text(self.records.config)

    @cached_property
    def provenance(self) -> Record:
        """What the run was started with: commit, versions, host, command. Runs of a sweep share it."""
        return read_json(self.records.provenance) or read_json(self.records.path.parent / "provenance.json") or {}

    @cached_property
    def result(self) -> Result | None:
        """How the run ended; None while it goes on."""
        return read_result(self.records.result)

    @cached_property
    def notes(self) -> list[Note]:
        """What people have remarked (``note RUN TEXT``), the oldest first."""
        return notes_in(self.records.path)

    @cached_property
    def attempts(self) -> list[Try]:
        """The starts of its ranks, the oldest first."""
        return [Try(attempt) for attempt in self.records.attempts()]

    @cached_property
    def metrics(self) -> Table:
        """A row per iteration: ``iteration``, ``time`` (seconds since the epoch), ``attempt``, and what the library
        tells, such as ``return_mean`` and ``fps``."""
        lines = spread_json_lines(self.records.metrics, self.most_lines)
        return Table({**line, "attempt": self._attempt_at(line.get("time"))} for line in lines)

    @cached_property
    def samples(self) -> Table:
        """How busy each node was, every few seconds: ``time``, ``attempt``, ``node``, ``host``, ``cpu`` (0 to 1),
        ``memory_used_mb``, ``gpus`` (a list) and more."""
        return Table(line for attempt in self.attempts for line in attempt.samples(self.most_lines))

    @cached_property
    def events(self) -> Table:
        """What the agents did and saw, over all attempts: ``time``, ``attempt``, ``event`` and its facts."""
        return Table({**event, "attempt": one.number} for one in self.attempts for event in one.events)

    def _attempt_at(self, time: Any) -> int | None:
        """Which attempt did something: metrics.jsonl does not say."""
        starts = self._starts
        index = bisect_right(starts, (time if is_number(time) else 0.0, float("inf"))) - 1
        return int(starts[max(index, 0)][1]) if starts else None

    @cached_property
    def _starts(self) -> list[tuple[float, float]]:
        return [(one.start["time"], one.number) for one in self.attempts if is_number(one.start.get("time"))]


@dataclass(frozen=True)
class Sweep(Sequence[Run]):
    """The runs of a sweep, in its order."""

    records: SweepDir
    """Where everything stands."""
    most_lines: int | None = None

    @property
    def sweep_id(self) -> str:
        return self.records.sweep_id

    @cached_property
    def runs(self) -> list[Run]:
        return [Run(RunDir(path), self.most_lines) for path in self.records.run_paths()]

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Run]: ...

    def __getitem__(self, index: int | slice) -> Run | Sequence[Run]:
        return self.runs[index]

    def __len__(self) -> int:
        return len(self.runs)

    @cached_property
    def metric(self) -> str:
        """The objective (``sweep.metric``), by which runs are compared."""
        return str(self.records.read().get("sweep", {}).get("metric") or "return_mean")

    @cached_property
    def values(self) -> dict[str, dict[str, Value]]:
        """What tells a run from the others: by its id the values of the keys in which they differ."""
        return varying(self.records.overrides())

    @cached_property
    def notes(self) -> list[Note]:
        """What people have remarked on the sweep as a whole, the oldest first."""
        return notes_in(self.records.path)

    @cached_property
    def table(self) -> Table:
        """A row per run: ``run_id``, :attr:`values`, ``outcome`` and ``cause`` (None while it goes on), ``iteration``,
        and the newest metrics, :attr:`metric` among them."""
        return Table(self._row(run) for run in self.runs)

    def _row(self, run: Run) -> Record:
        result, newest = run.result, last_json_line(run.records.metrics) or {}
        metrics = {name: value for name, value in newest.items() if name not in ("iteration", "time")}
        return {
            "run_id": run.run_id,
            **self.values[run.run_id],
            "outcome": result.outcome if result else None,
            "cause": result.cause if result else None,
            "iteration": result.iteration if result else newest.get("iteration"),
            self.metric: None,
            **(result.metrics if result and result.metrics else metrics),
        }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
