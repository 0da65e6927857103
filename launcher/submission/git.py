"""Git, asked about the directory that a run is submitted from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from launcher.errors import UserError

_TIMEOUT_S = 60


class GitError(UserError):
    """Git is not there, or refuses to say anything of a directory; the message is its own."""


def git(directory: Path, *arguments: str) -> bytes:
    """What git prints.

    Raises:
        GitError: there is no git, or it fails.
    """
    command = ["git", "-C", str(directory), "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments]
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"cannot run git: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitError(said[0].removeprefix("fatal: ") if said else f"git ended with code {done.returncode}")
    return done.stdout


def repository_of(directory: Path) -> Path | None:
    """The work tree that a directory is part of, or None where it is part of none.

    Raises:
        GitError: there is one, and git is not there or refuses to read it, as another user's.
    """
    if not any((parent / ".git").exists() for parent in (directory, *directory.parents)):
        return None
    return Path(os.fsdecode(git(directory, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
