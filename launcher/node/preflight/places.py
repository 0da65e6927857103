"""The directories that a run writes to: there, writable, with room."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.node import host
from launcher.node.preflight.topic import Topic
from launcher.node.preflight.wanted import Wanted
from launcher.records.preflight import ERROR, WARNING, Check, Facts, Finding

_DEADLINE_S = 5.0
_FULL_MB, _NEARLY_FULL_MB = 64, 2048
_NO_INODES, _FEW_INODES = 100, 10_000

RUN_DIR = Check(
    "run-dir", "a run directory that cannot be written, or does not answer",
    "choose one with runs_dir=DIR that all nodes share and you may write; a full quota shows like this, too",
)  # fmt: skip
SCRATCH = Check(
    "scratch", "a scratch directory that cannot be made or written",
    "choose a directory with cluster.scratch that every node has",
)  # fmt: skip
ROOM = Check(
    "disk-room", "a file system of the run with less than 2 GiB free, or less than 64 MiB (error)",
    "make room, or choose another place with runs_dir=DIR or cluster.scratch", (WARNING, ERROR),
)  # fmt: skip
INODES = Check(
    "disk-inodes", "a file system of the run with room for less than 10,000 files, or less than 100 (error)",
    "remove files, or choose another place with runs_dir=DIR or cluster.scratch", (WARNING, ERROR),
)  # fmt: skip


def _look_at_run_dir(wanted: Wanted, _: float) -> dict[str, Any]:
    return _place(wanted.run_dir) if wanted.run_dir else {}


def _look_at_scratch(wanted: Wanted, _: float) -> dict[str, Any]:
    path = os.path.expandvars(wanted.scratch)
    if "$" in path:
        return {"path": path, "problem": "one of its variables is not set on this node"}
    return _place(path) if path else {}


def _place(path: str) -> dict[str, Any]:
    """What is not there yet is made later, so what counts is the nearest directory that is."""
    place = next(place for place in (Path(path), *Path(path).parents) if os.path.exists(place))
    found = {"path": path, "problem": _write(place)}
    disk = host.disk(place)
    return {**found, "free_mb": disk.free_mb, "free_inodes": disk.free_inodes}


def _write(place: Path) -> str:
    """Why no file can be written there; empty where one can. Quotas show only when something is written."""
    probe = place / f".preflight-{os.uname().nodename}-{os.getpid()}-{id(place)}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, bytes(65536))
        finally:
            os.close(descriptor)
            probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _judge_run_dir(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    yield from _judge(wanted.host, RUN_DIR, facts["run_dir"])


def _judge_scratch(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    yield from _judge(wanted.host, SCRATCH, facts["scratch"])


def _judge(name: str, check: Check, seen: Mapping[str, Any]) -> Iterator[Finding]:
    if not seen:
        return
    if seen["problem"]:
        yield check.finding(name, f"{seen['path']}: {seen['problem']}")
        return
    free_mb, inodes = seen.get("free_mb"), seen.get("free_inodes")
    if free_mb is not None and free_mb < _NEARLY_FULL_MB:
        yield ROOM.finding(name, f"{seen['path']}: {free_mb} MiB are free", ERROR if free_mb < _FULL_MB else WARNING)
    if inodes is not None and inodes < _FEW_INODES:
        text = f"{seen['path']}: there is room for {inodes} more files"
        yield INODES.finding(name, text, ERROR if inodes < _NO_INODES else WARNING)


def _late_run_dir(wanted: Wanted, _: str, seconds: float) -> Finding:
    return RUN_DIR.finding(wanted.host, f"{wanted.run_dir}: the file system did not answer within {seconds:g} s")


def _late_scratch(wanted: Wanted, _: str, seconds: float) -> Finding:
    return SCRATCH.finding(wanted.host, f"{wanted.scratch}: the file system did not answer within {seconds:g} s")


RUN_DIR_TOPIC = Topic("run_dir", _look_at_run_dir, _judge_run_dir, _DEADLINE_S, _late_run_dir, (RUN_DIR, ROOM, INODES))
SCRATCH_TOPIC = Topic("scratch", _look_at_scratch, _judge_scratch, _DEADLINE_S, _late_scratch, (SCRATCH,))
