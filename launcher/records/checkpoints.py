"""The checkpoints of a run as files: which there are, which are whole, which are kept.

A checkpoint is a directory: ``state.pt``, what is the same on all ranks; ``rank-N.pt``, what is a rank's own; and
``seal.json``, written last, with the size and the checksum of every file. The directory gets its name only when it
is sealed. What has no seal was never finished; what does not fit its seal is damaged. Both are passed over.
A library that writes checkpoints of its own, as ``checkpoint-N``, gets them sealed where they are.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.records.files import Record, read_json, sync, write_json

STATE = "state.pt"
_CHUNK = 1 << 20

Save = Callable[[BinaryIO], object]


@dataclass(frozen=True)
class Checkpoint:
    """A sealed checkpoint."""

    path: Path
    iteration: int
    """The number of iterations that are done."""
    world_size: int

    @property
    def state(self) -> Path:
        """What is the same on all ranks."""
        return self.path / STATE

    def part(self, rank: int) -> Path:
        """What is a rank's own: random numbers, environments."""
        return self.path / part_name(rank)

    def whole(self) -> bool:
        """True when all files are what was sealed, byte for byte."""
        files = (read_json(_seal(self.path)) or {}).get("files", {})
        try:
            return bool(files) and all(_fingerprint(self.path / name) == files[name] for name in files)
        except OSError:
            return False


def part_name(rank: int) -> str:
    """The file of a rank's own state."""
    return f"rank-{rank}.pt"


def read(path: Path) -> Checkpoint | None:
    """The checkpoint in a directory, or None where there is no sealed one. Its data has not been checked."""
    seal = read_json(_seal(path))
    return Checkpoint(path, int(seal["iteration"]), int(seal["world_size"])) if seal else None


def list_sealed(directory: Path) -> list[Checkpoint]:
    """All sealed checkpoints, the oldest first. Their data has not been checked."""
    found = filter(None, map(read, (*directory.glob("[0-9]*"), *directory.glob("checkpoint-[0-9]*"))))
    return sorted(found, key=lambda checkpoint: checkpoint.iteration)


def newest_whole(directory: Path) -> Checkpoint | None:
    """The newest checkpoint that can be trusted, or None."""
    return next(filter(Checkpoint.whole, reversed(list_sealed(directory))), None)


def write_file(directory: Path, iteration: int, name: str, save: Save) -> None:
    """Write one file of a checkpoint that is being made; every rank may do so at once."""
    unfinished = _unfinished(directory, iteration)
    unfinished.mkdir(parents=True, exist_ok=True)
    with open(unfinished / name, "wb") as file:
        save(file)
        file.flush()
        sync(file.fileno())


def seal(directory: Path, iteration: int, world_size: int, keep: int) -> Checkpoint:
    """Finish a checkpoint whose files have all been written, and remove all but the last `keep`.

    Whenever the process or the node dies in between, the checkpoint before is still there and whole.
    """
    path, unfinished = directory / f"{iteration:09}", _unfinished(directory, iteration)
    files = {file.name: _fingerprint(file) for file in sorted(unfinished.glob("*.pt"))}
    write_json(_seal(unfinished), {"iteration": iteration, "world_size": world_size, "files": files})
    shutil.rmtree(path, ignore_errors=True)  # of an earlier save after the same iteration
    os.replace(unfinished, path)
    _prune(directory, keep)
    return Checkpoint(path, iteration, world_size)


def seal_in_place(path: Path, iteration: int, world_size: int) -> Checkpoint:
    """Seal a directory that a library wrote under a name of its own, with all files below it; none is removed."""
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file != _seal(path))
    files = {name: _fingerprint(path / name) for name in names}
    write_json(_seal(path), {"iteration": iteration, "world_size": world_size, "files": files})
    return Checkpoint(path, iteration, world_size)


def _prune(directory: Path, keep: int) -> None:
    newest = list_sealed(directory)
    for old in newest[:-keep]:
        _seal(old.path).unlink(missing_ok=True)  # first: half a checkpoint must not look like one
        shutil.rmtree(old.path, ignore_errors=True)
    for litter in directory.glob(".*.unfinished"):  # of attempts that died while they saved
        if newest and litter.name < f".{newest[-1].path.name}":
            shutil.rmtree(litter, ignore_errors=True)


def _unfinished(directory: Path, iteration: int) -> Path:
    return directory / f".{iteration:09}.unfinished"


def _seal(path: Path) -> Path:
    return path / "seal.json"


def _fingerprint(path: Path) -> Record:
    checksum = 0
    for chunk in _chunks(path):
        checksum = zlib.crc32(chunk, checksum)
    return {"size": path.stat().st_size, "crc32": checksum}


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
