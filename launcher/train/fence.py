"""The line between attempts: one that is not the newest any more writes nothing.

Its processes may outlive it, as on a node that was cut off from the network and comes back.
"""

from __future__ import annotations

import os
from pathlib import Path


class Superseded(RuntimeError):
    """A newer attempt of the run has begun."""


def attempt() -> int:
    """The number of this process's attempt; 0 outside of the launcher."""
    path = _directory()
    return int(path.name) if path else 0


def check() -> None:
    """Return while this process's attempt is the newest one.

    Raises:
        Superseded: it is not.
    """
    path = _directory()
    if path is not None and path.with_name(f"{int(path.name) + 1:03}").exists():
        raise Superseded(f"attempt {int(path.name) + 1:03} has taken over: attempt {path.name} writes nothing more")


def _directory() -> Path | None:
    stop_file = os.environ.get("LAUNCHER_STOP_FILE")
    path = Path(stop_file).parent if stop_file else None
    return path if path is not None and path.name.isdigit() else None
