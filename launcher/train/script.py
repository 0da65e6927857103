"""Run a user's script in this process, as `python FILE` or `python -m MODULE` would."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence


def run(command: Sequence[str]) -> None:
    """Run ``FILE ARGUMENTS…`` or ``-m MODULE ARGUMENTS…`` as the main program; exceptions and exits pass through."""
    if command[0] == "-m":
        sys.argv = list(command[1:])
        sys.path[0] = os.getcwd()
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
        runpy.run_path(command[0], run_name="__main__")
