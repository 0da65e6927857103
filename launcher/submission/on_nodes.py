"""Programs of ours on nodes before there is a run: in the environment that the plan's ranks would have."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import launcher
from launcher.plan.plan import Plan

_PACKAGE = Path(launcher.__file__).resolve().parents[1]
"""What has to be on PYTHONPATH."""


def script_for(plan: Plan, command: Sequence[str]) -> str:
    """Lines of shell that run a program on a node, as the batch script would: the setup decides what the ranks find.

    The setup must not read what the program is to read, nor answer for it.
    """
    setup = ["{", ":", *plan.setup, "} </dev/null >&2"]
    path = f"export PYTHONPATH={shlex.quote(str(_PACKAGE))}${{PYTHONPATH:+:$PYTHONPATH}}"
    return "\n".join([f"cd {shlex.quote(plan.submit_dir)} || exit", *setup, path, f"exec {shlex.join(command)}"])


def environment_here() -> dict[str, str]:
    """The environment of such a program on this machine."""
    return {**os.environ, "PYTHONPATH": f"{_PACKAGE}:{os.environ.get('PYTHONPATH', '')}"}
