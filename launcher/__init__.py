"""Launch reinforcement-learning and PyTorch training on Slurm clusters, or right here.

Importing this package loads the standard library only: it must start fast on login nodes and run in any Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.records.reading import load_run as load_run
    from launcher.records.reading import load_sweep as load_sweep

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What programs use is imported when it is asked for."""
    if name in ("load_run", "load_sweep"):
        from launcher.records import reading

        return getattr(reading, name)
    raise AttributeError(f"module 'launcher' has no attribute '{name}'")
