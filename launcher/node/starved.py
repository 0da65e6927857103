"""Agents that were killed for want of memory: what Slurm says when it is too late for them to say anything."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from launcher.records.files import read_json_lines, tail
from launcher.records.known import BY_ID
from launcher.records.result import Result
from launcher.records.rundir import RunDir
from launcher.slurm.fate import out_of_memory

_JUST_NOW_S = 120.0


def starved(run: RunDir, result: Result) -> Result:
    """The verdict on a start whose agents were killed, with the better cause where Slurm names one."""
    if result.cause != "killed" or not (nodes := _starved_nodes(run)):
        return result
    hosts = _hosts(run)
    host = hosts[nodes[0]] if nodes[0] < len(hosts) else result.host
    why = BY_ID["oom-killer"]
    message = f"the job was killed on {host} for want of memory"
    return replace(result, cause=why.cause, known=why.id, message=message, host=host, hint=why.hint)


def _starved_nodes(run: RunDir) -> list[int]:
    """The nodes in whose output, after the last words of the agent, Slurm has just said so."""
    found: list[int] = []
    for path in run.slurm.glob("*_log.out"):
        said = tail(path).decode(errors="replace").rpartition("[launcher] ")[2]
        task = re.search(r"_(\d+)_log\.out$", path.name)
        if task and time.time() - path.stat().st_mtime < _JUST_NOW_S and out_of_memory(said):
            found.append(int(task[1]))
    return sorted(found)


def _hosts(run: RunDir) -> Sequence[str]:
    for attempt in reversed(run.attempts()):
        for event in read_json_lines(attempt.events):
            return event.get("hosts", [])
    return []
