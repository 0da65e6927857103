"""Run a user's script in this process, as `python FILE` or `python -m MODULE` would."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any


def run(command: Sequence[str]) -> None:
    """Run ``FILE ARGUMENTS…`` or ``-m MODULE ARGUMENTS…`` as the main program; exceptions and exits pass through.

    The main module is a new one and stays, as Python's own does: handlers of atexit, pickles of its classes and
    processes that multiprocessing spawns need it. runpy's `run_path` would take it away at the end.
    """
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if command[0] == "-m":
        sys.argv = list(command[1:])
        _look_first_in(os.getcwd())
        interpreter: Any = runpy
        interpreter._run_module_as_main(command[1])  # what Python itself calls for -m
    else:
        sys.argv = list(command)
        _look_first_in(os.path.dirname(os.path.realpath(command[0])))
        _run_file(main, command[0])


def _look_first_in(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # python -P, PYTHONSAFEPATH
        sys.path[0] = directory


def _run_file(main: ModuleType, file: str) -> None:
    with io.open_code(os.path.abspath(file)) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    here = {"__file__": os.path.abspath(file), "__cached__": None, "__annotations__": {}}
    vars(main).update(here, __loader__=SourceFileLoader("__main__", file), __spec__=None, __package__=None)
    exec(code, vars(main))
