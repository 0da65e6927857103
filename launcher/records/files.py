"""Files that are complete or absent, and logs of one JSON object a line."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file so that a reader, on any node and at any moment, sees the old content or the new, whole."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            sync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(descriptor: int) -> None:
    """Have the written data survive a power loss."""
    os.fsync(descriptor)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write one JSON object, atomically."""
    write_atomic(path, json.dumps(record, indent=2) + "\n")


def create_json(path: Path, record: Mapping[str, Any]) -> bool:
    """Write one JSON object where there is no file yet; False where there is. Of several writers one gets True."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    write_json(temporary, record)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def read_json(path: Path) -> Record | None:
    """The JSON object in a file, or None where there is no such file, or no object in it."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON object as a line, in a single write."""
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_json_lines(path: Path) -> Iterator[Record]:
    """The objects of a log; a line that is still being written, or is no object, is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    yield from filter(None, map(parse_json_line, lines))


def spread_json_lines(path: Path, most: int | None) -> Iterator[Record]:
    """About `most` objects of a log, evenly spread over it, the first and the last among them; all where it is None.

    Of a large log only these lines are read, so that its length costs no time.
    """
    try:
        size = os.stat(path).st_size
    except OSError:
        return
    if most is None or size <= most * _SHORT_LINE:
        yield from read_json_lines(path)
        return
    record = None
    with open(path, "rb") as file:
        for offset in (size * index // most for index in range(most)):
            if offset >= file.tell():
                file.seek(max(offset - 1, 0))
                if offset:
                    file.readline()  # the rest of a line, or the end of one
                record = parse_json_line(file.readline())
                yield from filter(None, [record])
    if (last := last_json_line(path)) != record:
        yield from filter(None, [last])


_SHORT_LINE = 200
"""Bytes. A log that would be as short with lines like this is read whole."""


def last_json_line(path: Path, window: int = 65536) -> Record | None:
    """The newest object of a log, reading only its last `window` bytes."""
    parsed = filter(None, map(parse_json_line, reversed(tail(path, window).splitlines())))
    return next(parsed, None)


def tail(path: Path, window: int = 65536) -> bytes:
    """The last bytes of a file, or nothing where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - window))
            return file.read(window)
    except OSError:
        return b""


def parse_json_line(line: bytes) -> Record | None:
    """The object in a line, or None where there is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
