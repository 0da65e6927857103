"""The nodes that failed a run of this user lately, so that the next ones keep away from them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from launcher.records.files import append_json_line, read_json_lines
from launcher.records.rundir import launchers_own

_RECORD = "bad_nodes.jsonl"


@dataclass(frozen=True)
class BadNode:
    """A node, and why it is avoided."""

    host: str
    cause: str
    """``node_lost``, ``rendezvous``: the cause of the attempt that it ended."""
    run_id: str
    time: float
    """Seconds since the epoch."""
    until: float


def remember(runs_dir: Path, hosts: Iterable[str], cause: str, run_id: str, seconds: int) -> None:
    """Write down that nodes failed a run, to be avoided for so long."""
    now, own = time.time(), launchers_own(runs_dir, make=True)
    for host in hosts:
        record = {"host": host, "cause": cause, "run_id": run_id, "time": now, "until": now + seconds}
        append_json_line(own / _RECORD, record)


def bad_nodes(runs_dir: Path) -> list[BadNode]:
    """Those that are still to be avoided, each once, the latest failure of each."""
    fields = BadNode.__dataclass_fields__
    records = (
        record for record in read_json_lines(launchers_own(runs_dir) / _RECORD) if fields.keys() <= record.keys()
    )
    found = {record["host"]: BadNode(**{name: record[name] for name in fields}) for record in records}
    return [node for node in found.values() if node.until > time.time()]
