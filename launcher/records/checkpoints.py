"""The checkpoints of a run as files: which there are, which are whole, which are kept.

A checkpoint is a data file and, written after it, a seal: its size, its checksum and what is in it. What has no seal
was never finished; what does not fit its seal is damaged. Both are passed over.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.records.files import read_json, sync, write_json

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A sealed checkpoint."""

    path: Path
    iteration: int
    """The number of iterations that are done."""

    def whole(self) -> bool:
        """True when the data is what was sealed, byte for byte."""
        seal = read_json(_seal(self.path)) or {}
        try:
            return (self.path.stat().st_size, _checksum(self.path)) == (seal.get("size"), seal.get("crc32"))
        except OSError:
            return False


def list_sealed(directory: Path) -> list[Checkpoint]:
    """All sealed checkpoints, the oldest first. Their data has not been checked."""
    seals = ((path, read_json(path)) for path in directory.glob("*.json"))
    found = [Checkpoint(path.with_suffix(".pt"), int(seal["iteration"])) for path, seal in seals if seal]
    return sorted(found, key=lambda checkpoint: checkpoint.iteration)


def newest_whole(directory: Path) -> Checkpoint | None:
    """The newest checkpoint that can be trusted, or None."""
    return next(filter(Checkpoint.whole, reversed(list_sealed(directory))), None)


def write(directory: Path, iteration: int, save: Callable[[BinaryIO], None], keep: int) -> Checkpoint:
    """Save through `save`, seal, and remove all but the last `keep`.

    Whenever the process or the node dies in between, the checkpoint before is still there and whole.
    """
    path = directory / f"{iteration:09}.pt"
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            save(file)
            file.flush()
            sync(file.fileno())
        seal = {"iteration": iteration, "size": temporary.stat().st_size, "crc32": _checksum(temporary)}
        _seal(path).unlink(missing_ok=True)  # of an earlier file of this name: it would not fit the new data
        os.replace(temporary, path)
        write_json(_seal(path), seal)
    finally:
        temporary.unlink(missing_ok=True)
    _prune(directory, keep)
    return Checkpoint(path, iteration)


def _prune(directory: Path, keep: int) -> None:
    for old in list_sealed(directory)[:-keep]:
        _seal(old.path).unlink(missing_ok=True)
        old.path.unlink(missing_ok=True)


def _seal(path: Path) -> Path:
    return path.with_suffix(".json")


def _checksum(path: Path) -> int:
    checksum = 0
    for chunk in _chunks(path):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
