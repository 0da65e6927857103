"""How busy this node is: one JSON line per period for the records, taken beside the ranks."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from launcher.node import host, nvml
from launcher.records.files import append_json_line, parse_json_line

PERIOD_S = 5.0
_MOST_STARTS = 3
"""Of the process that asks NVML: one that ends again and again will not get better."""
_LEAST_PERIOD_S = 0.1

Sample = dict[str, Any]


@contextlib.contextmanager
def sampling(file: Path, run_dir: Path, *, gpus: bool, period_s: float = PERIOD_S) -> Generator[Samples]:
    """Append samples to a file while the block runs; `gpus`: the ranks may compute on some.

    Two threads and, with GPUs, a small process do the work, so that no driver and no file system that hangs holds up
    the caller.
    """
    samples = Samples(file, run_dir, max(period_s, _LEAST_PERIOD_S), _GpuFeed(period_s) if gpus else None)
    samples.start()
    try:
        yield samples
    finally:
        samples.stop()


class Samples:
    """The samples of one node."""

    def __init__(self, file: Path, run_dir: Path, period_s: float, gpus: _GpuFeed | None) -> None:
        self._file, self._run_dir, self._period_s, self._gpus = file, run_dir, period_s, gpus
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

    def _sample(self, cpu: float | None) -> Sample:
        memory = host.memory()
        sample: Sample = {
            "time": round(time.time(), 3),
            "cpu": cpu,
            "memory_used_mb": memory.used,
            "memory_limit_mb": memory.limit,
            "disk_free_mb": self._disk_free(),
        }
        return sample if self._gpus is None else {**sample, **self._gpus.latest()}

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
