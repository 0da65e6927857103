"""The ranks' interpreter, the versions of what it has, and the task's script."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launcher
from launcher.node.preflight import versions
from launcher.node.preflight.topic import Topic
from launcher.node.preflight.wanted import Wanted
from launcher.records.preflight import Check, Facts, Finding

_DEADLINE_S = 5.0

PYTHON = Check(
    "python", "an interpreter of the ranks that cannot be started",
    "give one with cluster.python, cluster.venv or cluster.conda that every node has",
)  # fmt: skip
SCRIPT = Check("script", "a script of the task that is not there", "let it lie where all nodes see it, or snapshot=git")


def _look(wanted: Wanted, deadline_s: float) -> dict[str, Any]:
    return {"launcher": launcher.__version__, **_script(wanted.script), **_versions(wanted.python, deadline_s)}


def _versions(python: str, deadline_s: float) -> dict[str, Any]:
    """Asked of the interpreter itself where it is another one than this."""
    if not python:
        return {}
    if python == sys.executable:
        return dict(versions.versions())
    try:
        done = subprocess.run(
            [python, versions.__file__], timeout=deadline_s, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except OSError as error:
        return {"python_problem": error.strerror or str(error)}
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"python_problem": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


def _script(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return {"script": f"{zlib.crc32(Path(path).read_bytes()):08x}"}
    except OSError as error:
        return {"script_problem": error.strerror or str(error)}


def _judge(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    seen = facts["software"]
    if "python_problem" in seen:
        yield PYTHON.finding(wanted.host, f"{wanted.python}: {seen['python_problem']}")
    if "script_problem" in seen:
        yield SCRIPT.finding(wanted.host, f"{wanted.script}: {seen['script_problem']}")


TOPIC = Topic("software", _look, _judge, _DEADLINE_S, checks=(PYTHON, SCRIPT))
