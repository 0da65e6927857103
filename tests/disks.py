"""Disks that are full or read-only, for real: small file systems in memory, which only root can mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

SIZE = 64 * 1024


@contextlib.contextmanager
def small_disk(path: Path) -> Generator[Path]:
    """A file system of 64 KiB at a directory; skips the test where it may not be mounted."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "test", path], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def make_read_only(disk: Path, yes: bool) -> None:
    """Turn a small disk into one that cannot be written, or back; no file on it may be open for writing."""
    subprocess.run(["mount", "-o", f"remount,{'ro' if yes else 'rw'}", disk], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Fill a small disk but for so many bytes; returns the file to remove when there is to be room again."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    ballast.write_bytes(b"x" * (free.f_bavail * free.f_bsize - leave))
    return ballast
