"""How busy this node is: one JSON line per period for the records, taken beside the ranks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.node import host, nvml, processes
from launcher.node.preflight.gpus import chosen
from launcher.records.files import append_json_line, parse_json_line
from launcher.records.rundir import Attempt

PERIOD_S = 5.0
_MOST_STARTS = 3
"""Of the process that asks NVML: one that ends again and again will not get better."""
_LEAST_PERIOD_S = 0.1

Sample = dict[str, Any]


@dataclass(frozen=True)
class Watched:
    """Whose node it is, and who wants to know."""

    ranks: Callable[[], Mapping[int, int]] = dict
    """The processes of this node's ranks that are alive, by global rank."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES of the ranks: other GPUs are none of this run's."""
    tell: Callable[[Sample], None] = lambda sample: None
    """Called with each sample, from another thread."""


@contextlib.contextmanager
def sampling(
    file: Path, run_dir: Path, *, gpus: bool, period_s: float = PERIOD_S, watched: Watched | None = None
) -> Generator[Samples]:
    """Append samples to a file while the block runs; `gpus`: the ranks may compute on some.

    Two threads and, with GPUs, a small process do the work, so that no driver and no file system that hangs holds up
    the caller.
    """
    period_s = max(period_s, _LEAST_PERIOD_S)
    samples = Samples(file, run_dir, period_s, _GpuFeed(period_s) if gpus else None, watched or Watched())
    samples.start()
    try:
        yield samples
    finally:
        samples.stop()


class Samples:
    """The samples of one node."""

    def __init__(self, file: Path, run_dir: Path, period_s: float, gpus: _GpuFeed | None, watched: Watched) -> None:
        self._file, self._run_dir, self._period_s, self._gpus = file, run_dir, period_s, gpus
        self._watched = watched
        self._connected: set[int] = set()  # processes that have been seen to be
        self._over = threading.Event()
        self.latest: Sample = {}
        """The newest one: the same as the file's last line."""

    def start(self) -> None:
        """Begin; the first sample comes after a period, for the use of processors is one over time."""
        if self._gpus is not None:
            self._gpus.start()
        threading.Thread(target=self._run, name="samples", daemon=True).start()

    def stop(self) -> None:
        """Take no more, and end the process that asks NVML."""
        self._over.set()
        if self._gpus is not None:
            self._gpus.stop()

    def _run(self) -> None:
        before = host.cpu_times()
        while not self._over.wait(self._period_s):
            now = host.cpu_times()
            self.latest = self._sample(now.used_since(before))
            before = now
            with contextlib.suppress(OSError):  # a full disk: the ranks will say so
                append_json_line(self._file, self.latest)
            if not self._over.is_set():
                self._watched.tell(self.latest)

    def _sample(self, cpu: float | None) -> Sample:
        memory = host.memory()
        sample: Sample = {
            "time": round(time.time(), 3),
            "cpu": cpu,
            "memory_used_mb": memory.used,
            "memory_limit_mb": memory.limit,
            "disk_free_mb": self._disk_free(),
            "ranks": self._ranks(),
        }
        return sample if self._gpus is None else {**sample, **self._of_run(self._gpus.latest())}

    def _ranks(self) -> list[Sample]:
        """The ranks here; whether each is connected to anything is looked up until it is."""
        pids = dict(self._watched.ranks())
        self._connected |= {pid for pid in pids.values() if pid not in self._connected and processes.connected(pid)}
        return [
            {"rank": rank, "pid": pid, "connected": pid in self._connected, "log_bytes": self._log_bytes(rank)}
            for rank, pid in sorted(pids.items())
        ]

    def _log_bytes(self, rank: int) -> int:
        """How much it has printed: the only thing that tells when a line was."""
        with contextlib.suppress(OSError):
            return os.stat(Attempt(self._file.parent).rank_log(rank)).st_size
        return 0

    def _of_run(self, said: Sample) -> Sample:
        """The GPUs that the ranks may use, with the ranks that compute on each."""
        gpus = chosen(said["gpus"], self._watched.visible) if said["gpus"] is not None else None
        return {**said, "gpus": gpus and [{**gpu, "ranks": self._ranks_of(gpu.get("pids", []))} for gpu in gpus]}

    def _ranks_of(self, pids: Iterable[int]) -> list[int]:
        """The ranks that processes belong to, by what they were started with; a rank's own children inherit it."""
        environments = map(processes.environment, pids)
        own = [one for one in environments if one.get("LAUNCHER_RUN_DIR") == str(self._run_dir)]
        return sorted({int(one["RANK"]) for one in own if one.get("RANK", "").isdigit()})

    def _disk_free(self) -> int | None:
        try:
            return host.disk(self._run_dir).free_mb
        except OSError:
            return None


class _GpuFeed:
    """The process that asks NVML, and what it said last."""

    def __init__(self, period_s: float) -> None:
        self._command, self._environment = nvml.command(period_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._said: Mapping[str, Any] = {"state": "no answer yet"}
        self._said_at = time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self._run, name="gpu samples", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        if self._process is not None:
            self._process.kill()

    def latest(self) -> Sample:
        """The GPUs as they were, and how many seconds ago that is: a driver that hangs says nothing new."""
        age = round(time.monotonic() - self._said_at, 1)
        if "gpus" in self._said:
            return {"gpus": self._said["gpus"], "gpus_age_s": age}
        return {"gpus": None, "gpus_problem": self._said.get("message") or self._said["state"], "gpus_age_s": age}

    def _run(self) -> None:
        for _ in range(_MOST_STARTS):
            if self._over.is_set() or self._said["state"] in (nvml.NO_DRIVER, nvml.NO_PACKAGE):
                return
            with contextlib.suppress(OSError):
                self._listen()

    def _listen(self) -> None:
        """Take in what the process says, until it ends."""
        self._process = subprocess.Popen(
            self._command, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with self._process as process:
            if self._over.is_set():  # stopped while it was being started
                process.kill()
            assert process.stdout is not None
            for line in process.stdout:
                if (said := parse_json_line(line)) is not None:
                    self._said, self._said_at = said, time.monotonic()
