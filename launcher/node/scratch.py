"""A directory of this node for the ranks of one attempt: there while they run, gone afterwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from launcher.node import temporary


class ScratchError(Exception):
    """The directory cannot be made."""


@contextlib.contextmanager
def scratch_directory(place: str, name: str) -> Generator[Path | None]:
    """A new directory, with `name` in its own, at `place`, for this user only; nothing at all where no place is given.

    `place` may hold ``$NAME`` of this node's environment: sites tell a job its own disk in TMPDIR and the like.

    Raises:
        ScratchError: the place cannot be written to, or one of its variables is not set here.
    """
    if not place:
        yield None
        return
    path = Path(os.path.expandvars(place), f"{temporary.PREFIX}{name}")
    _make(path)
    with temporary.held(path):
        yield path


def _make(path: Path) -> None:
    if "$" in str(path):
        raise ScratchError(f"cluster.scratch: a variable of '{path.parent}' is not set on this node")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except OSError as error:
        raise ScratchError(f"cluster.scratch: cannot make '{path}': {error.strerror}") from error
