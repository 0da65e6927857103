"""The checkpoints of a run as files: which there are, which are whole, which are kept.

A checkpoint is a directory: ``state.pt``, what is the same on all ranks; ``rank-N.pt``, what is a rank's own; and
``seal.json``, written last, with the size and the checksum of every file and of itself. The directory gets its name
only when it is sealed. What has no seal was never finished; what does not fit its seal is damaged. Both are passed
over, and so is what another version of the format wrote.
A library that writes checkpoints of its own, as ``checkpoint-N``, gets them sealed where they are.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from launcher.records.files import Record, read_json, sync, write_json

VERSION = 1
"""Of the format; in every seal."""
STATE = "state.pt"
_CHUNK = 1 << 20
_NAME = re.compile(r"(?P<sealed>(checkpoint-)?(?P<number>\d+))|\.(?P<draft>\d+)\.\d+\.unfinished")
_LITTER = re.compile(r"\.(?P<number>\d+)(\.\d+\.unfinished|\.removed)")

Save = Callable[[BinaryIO], object]


@dataclass(frozen=True)
class Checkpoint:
    """A sealed checkpoint."""

    path: Path
    iteration: int
    """The number of iterations that are done."""
    world_size: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metric that tells which one is the best, at the time of the save; empty where it was not measured."""

    @property
    def state(self) -> Path:
        """What is the same on all ranks."""
        return self.path / STATE

    def part(self, rank: int) -> Path:
        """What is a rank's own: random numbers, environments."""
        return self.path / part_name(rank)


@dataclass(frozen=True)
class Choice:
    """The checkpoint to go on from, and a sentence for each newer one that cannot be used."""

    checkpoint: Checkpoint | None
    passed_over: tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    """A checkpoint that the ranks of one attempt are making.

    Every attempt has drafts of its own: a process of an older one that still writes does not write into them.
    """

    directory: Path
    iteration: int
    attempt: int = 0

    @property
    def path(self) -> Path:
        return self.directory / f".{self.iteration:09}.{self.attempt:03}.unfinished"

    def write(self, name: str, save: Save) -> None:
        """Write one file; every rank may do so at once."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / name, "wb") as file:
            save(file)
            file.flush()
            sync(file.fileno())

    def seal(self, world_size: int, names: Iterable[str], metrics: Mapping[str, Any] | None = None) -> None:
        """Note what belongs to it, all of which has been written. Of the metrics only finite numbers are noted.

        The files are named, not looked for: on a network file system a listing may be older than they are.

        Raises:
            OSError: a file is not there, or the disk fails.
        """
        _write_seal(self.path, self.iteration, world_size, names, metrics or {})
        _sync_directory(self.path)

    def publish(self) -> Path:
        """Give it its name: from now on it is a checkpoint.

        Whenever the process or the node dies, the checkpoint before is still there and whole.
        """
        path = self.directory / f"{self.iteration:09}"
        if path.exists():  # damaged, or it would have been gone on from
            _remove(path)
        os.replace(self.path, path)
        _sync_directory(self.directory)
        return path

    def discard(self) -> None:
        """Remove it, as far as the disk lets us."""
        shutil.rmtree(self.path, ignore_errors=True)


def part_name(rank: int) -> str:
    """The file of a rank's own state."""
    return f"rank-{rank}.pt"


def read(path: Path) -> Checkpoint | None:
    """The checkpoint in a directory, or None where there is no sealed one. Its data has not been checked."""
    seal, problem = _read_seal(path)
    return None if problem else Checkpoint(path, seal["iteration"], seal["world_size"], seal["metrics"])


def problem_of(path: Path) -> str:
    """Why the checkpoint in a directory cannot be used, in words; empty when it is whole, byte for byte."""
    seal, problem = _read_seal(path)
    faults = filter(None, (_fault(path / name, sealed) for name, sealed in seal.get("files", {}).items()))
    return problem or next((f"is damaged: {fault}" for fault in faults), "")


def list_sealed(directory: Path) -> list[Checkpoint]:
    """All sealed checkpoints, the oldest first. Their data has not been checked."""
    return list(filter(None, (read(path) for _, sealed, path in _all(directory) if sealed)))


def choose(directory: Path) -> Choice:
    """The newest checkpoint that can be trusted, and why the newer ones cannot."""
    passed_over: list[str] = []
    for number, sealed, path in reversed(_all(directory)):
        problem = problem_of(path) if sealed else "was never finished"
        if not problem:
            return Choice(read(path), tuple(passed_over))
        passed_over.append(f"checkpoint {number:09} {problem}")
    return Choice(None, tuple(passed_over))


def newest_whole(directory: Path) -> Checkpoint | None:
    """The newest checkpoint that can be trusted, or None."""
    return choose(directory).checkpoint


def best(sealed: Iterable[Checkpoint], metric: str) -> Checkpoint | None:
    """The checkpoint with the largest value of a metric, with ``-`` before its name the smallest; of equals the newest.

    None where no checkpoint has the metric.
    """
    sign, name = (-1, metric[1:]) if metric.startswith("-") else (1, metric)
    measured = (one for one in sealed if name in one.metrics)
    return max(measured, key=lambda one: (sign * one.metrics[name], one.iteration), default=None)


def prune(directory: Path, keep: int, metric: str | None = None) -> None:
    """Remove all but the last `keep` checkpoints and the best one, and what older saves left unfinished."""
    sealed = list_sealed(directory)
    kept = {one.path for one in (*sealed[-keep:], *filter(None, [best(sealed, metric) if metric else None]))}
    for old in sealed:
        if old.path not in kept:
            _remove(old.path)
    for litter in directory.glob(".*"):
        name = _LITTER.fullmatch(litter.name)
        if name and sealed and int(name["number"]) <= sealed[-1].iteration:
            shutil.rmtree(litter, ignore_errors=True)


def seal_in_place(path: Path, iteration: int, world_size: int) -> Checkpoint:
    """Seal a directory that a library wrote under a name of its own, with all files below it; none is removed."""
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file != _seal(path))
    _write_seal(path, iteration, world_size, names, {})
    return Checkpoint(path, iteration, world_size)


def _all(directory: Path) -> list[tuple[int, bool, Path]]:
    """Iteration, whether it has a checkpoint's name, and path of all that is there; the oldest first."""
    found = ((_NAME.fullmatch(path.name), path) for path in directory.glob("*"))
    return sorted((int(name["number"] or name["draft"]), bool(name["sealed"]), path) for name, path in found if name)


def _remove(path: Path) -> None:
    """The name goes first: half a checkpoint must not look like one."""
    removed = path.with_name(f".{path.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    os.replace(path, removed)
    shutil.rmtree(removed, ignore_errors=True)


def _write_seal(path: Path, iteration: int, world_size: int, names: Iterable[str], metrics: Mapping[str, Any]) -> None:
    seal: Record = {
        "version": VERSION,
        "iteration": iteration,
        "world_size": world_size,
        "metrics": {name: value for name, value in metrics.items() if _is_number(value)},
        "files": {name: _fingerprint(path / name) for name in names},
    }
    write_json(_seal(path), {**seal, "crc32": _checksum(seal)})


def _read_seal(path: Path) -> tuple[Record, str]:
    """The seal of a directory, or an empty one and what is wrong with it."""
    seal = read_json(_seal(path))
    if seal is None:
        return {}, "is damaged: its seal cannot be read" if _seal(path).exists() else "was never finished"
    if seal.get("version") != VERSION:
        return {}, f"has version {seal.get('version', 0)}, and version {VERSION} is read here"
    if seal.pop("crc32", None) != _checksum(seal):
        return {}, "is damaged: its seal is not what was written"
    return seal, ""


def _checksum(seal: Record) -> int:
    return zlib.crc32(json.dumps(seal, sort_keys=True).encode())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _fault(path: Path, sealed: Record) -> str:
    """How a file differs from what was sealed; empty when it does not."""
    try:
        found = _fingerprint(path)
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"
    if found["size"] != sealed["size"]:
        return f"{path.name} has {found['size']} bytes instead of {sealed['size']}"
    return "" if found == sealed else f"{path.name} is not what was written"


def _sync_directory(path: Path) -> None:
    """Have the names in a directory survive a power loss, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def _seal(path: Path) -> Path:
    return path / "seal.json"


def _fingerprint(path: Path) -> Record:
    size = checksum = 0
    for chunk in _chunks(path):
        size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    return {"size": size, "crc32": checksum}


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
