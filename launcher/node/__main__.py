"""``python -m launcher.node RUN_DIR [NODE]``: the agent, whoever starts it: submitit, a script, a person."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from launcher.errors import LauncherError
from launcher.node import processes
from launcher.node.agent import serve
from launcher.node.claim import claim
from launcher.node.place import find_place
from launcher.plan.plan import Plan
from launcher.records.rundir import RunDir

PARENT_VARIABLE = "LAUNCHER_FOREGROUND"
"""The process whose end ends this one: the command line of a run in the foreground."""


def main(arguments: list[str]) -> int:
    """Run the agent for the run directory named on the command line; returns its exit code."""
    if len(arguments) not in (1, 2) or not all(word.isdigit() for word in arguments[1:]):
        print("usage: python -m launcher.node RUN_DIR [NODE]", file=sys.stderr)
        return 2
    if parent := os.environ.pop(PARENT_VARIABLE, None):
        processes.end_with_parent(int(parent))
    run = RunDir(Path(arguments[0]))
    try:
        plan = Plan.from_json(run.plan.read_text())
        place = find_place(plan, os.environ, *map(int, arguments[1:]))
        if place.leader and plan.scheduler != "local":
            claim(run, place)
    except (LauncherError, OSError, ValueError) as error:
        print(f"launcher: {error}", file=sys.stderr)
        return 1
    processes.adopt_orphans()
    try:
        return asyncio.run(serve(plan, run, place))
    finally:
        processes.end_descendants()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
