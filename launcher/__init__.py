"""Launch reinforcement-learning and PyTorch training on Slurm clusters, or right here.

Importing this package loads the standard library only: it must start fast on login nodes and run in any Python.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.api import cancel as cancel
    from launcher.api import status as status
    from launcher.api import submit as submit
    from launcher.api import submit_sweep as submit_sweep
    from launcher.api import wait as wait
    from launcher.records.reading import load_run as load_run
    from launcher.records.reading import load_sweep as load_sweep

__version__ = "0.1.0"

_FROM = {
    "load_run": "launcher.records.reading",
    "load_sweep": "launcher.records.reading",
    "submit": "launcher.api",
    "submit_sweep": "launcher.api",
    "wait": "launcher.api",
    "status": "launcher.api",
    "cancel": "launcher.api",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM})


def __getattr__(name: str) -> Any:
    """What programs use is imported when it is asked for."""
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    raise AttributeError(f"module 'launcher' has no attribute '{name}'")
