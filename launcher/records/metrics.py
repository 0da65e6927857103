"""The writer of metrics.jsonl: each iteration once, whatever attempts there were, and no disk fails the training."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.records.files import Record, parse_json_line, sync, write_atomic


class MetricsLog:
    """Appends the records of one attempt.

    With its first record it puts a new file in the place of the old one, without the iterations that are done again.
    A writer of an older attempt that still lives goes on writing into the old file, which nobody can see any more.
    """

    def __init__(self, path: Path, check: Callable[[], object], warn: Callable[[str], object]) -> None:
        """Nothing is written yet.

        Args:
            path: the file.
            check: raises when this attempt may write no more; called whenever the file is opened.
            warn: told once when writing begins to fail, and at the end of what is lost.
        """
        self._path, self._check, self._warn = path, check, warn
        self._descriptor: int | None = None
        self._first: int | None = None
        self._replaced = self._failing = False
        self._waiting = bytearray()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record as a line. What the disk does not take now is kept, and written when it does."""
        if self._first is None:
            self._first = record["iteration"]
        self._waiting += json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write what is waiting, from the very byte where the last write ended."""
        if not self._waiting:
            return
        try:
            descriptor = self._open()
            while self._waiting:
                del self._waiting[: os.write(descriptor, self._waiting)]
            self._failing = False
        except OSError as error:
            self._close()  # it may be stale
            if not self._failing:
                self._warn(f"metrics.jsonl cannot be written ({error.strerror}): its lines are kept until it can")
            self._failing = True

    def sync(self) -> None:
        """Have what is written survive a power loss."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                sync(self._descriptor)

    def finish(self) -> None:
        """Write what is waiting, or say that it is lost."""
        self.flush()
        if self._waiting:
            self._warn(f"{self._waiting.count(10)} lines of metrics.jsonl could not be written")

    def _open(self) -> int:
        if self._descriptor is None:
            self._check()
            if not self._replaced:
                write_atomic(self._path, self._older())
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._replaced = True
        return self._descriptor

    def _older(self) -> bytes:
        """What is there already, less the iterations that are done again, and less half a line."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        return b"".join(line + b"\n" for line in lines if self._stays(parse_json_line(line)))

    def _stays(self, record: Record | None) -> bool:
        iteration = (record or {}).get("iteration")
        return record is not None and not (isinstance(iteration, int) and iteration >= (self._first or 0))

    def _close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
