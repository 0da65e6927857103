"""What a run was started with, so that it can be understood, and repeated, years later."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import launcher
from launcher.plan.plan import Plan
from launcher.records.files import Record
from launcher.slurm import commands
from launcher.slurm.user import user_name
from launcher.submission.git import GitError, git, repository_of
from launcher.submission.secrets import mask, without_login

_LONGEST_DIFF = 1024**2
"""Bytes; what does not fit is in the snapshot."""
_ASK_PYTHON_S = 30
_NVIDIA = Path("/proc/driver/nvidia/version")


def collect(plan: Plan) -> Record:
    """The facts of this moment and machine, for all runs that a command starts: they cost some 50 ms.

    What is not there is null.
    """
    executable, version, paths = _python_of(plan)
    packages = dict(sorted(_packages(paths)))
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": ["python", "-m", "launcher", *map(mask, sys.argv[1:])],
        "directory": plan.submit_dir,
        "host": os.uname().nodename,
        "user": user_name(),
        "launcher": launcher.__version__,
        "python": {"executable": executable, "version": version},
        "torch": packages.get("torch"),
        "cuda": _cuda(packages),
        "driver": _driver(),
        "slurm": commands.version() if plan.scheduler == "slurm" else None,
        "git": _git(Path(plan.submit_dir)),
        "packages": packages,
    }


def _python_of(plan: Plan) -> tuple[str, str | None, list[str]]:
    """The ranks' interpreter, its version, and where it finds packages. It is asked where it is not this one."""
    if plan.python == sys.executable:
        return sys.executable, sys.version, sys.path
    try:
        code = "import sys; print(sys.version.replace(chr(10), ' '), *sys.path[1:], sep=chr(10))"
        done = subprocess.run(
            [plan.python, "-c", code], cwd=plan.submit_dir, capture_output=True, text=True, timeout=_ASK_PYTHON_S,
            check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):  # one that only the nodes have
        return plan.python, None, []
    version, *paths = done.stdout.splitlines()
    return plan.python, version, paths


def _packages(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and version of what is installed, from the directories' names: reading the metadata takes ten times as long.

    Of two of a name the first one on the path counts.
    """
    for path in reversed(paths):
        for found in Path(path or ".").glob("*.dist-info"):
            name, _, version = found.name.removesuffix(".dist-info").partition("-")
            yield re.sub(r"[-_.]+", "-", name).lower(), version


def _cuda(packages: Record) -> str | None:
    """The version that torch was built for: its own version ends with it, or it brings CUDA's runtime."""
    built = re.search(r"\+cu(\d+)(\d)$", packages.get("torch", ""))
    if built is not None:
        return f"{built[1]}.{built[2]}"
    return next((version for name, version in packages.items() if name.startswith("nvidia-cuda-runtime")), None)


def _driver() -> str | None:
    """Of this machine, which may be without a GPU where the nodes have some."""
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", _NVIDIA.read_text())
    except OSError:
        return None
    return None if found is None else found[1]


def _git(directory: Path) -> dict[str, Any] | None:
    """Commit, branch, remote, and all that is not committed: the diff, and the names of new files."""
    try:
        repository = repository_of(directory)
        return None if repository is None else _work_tree(repository)
    except GitError as error:
        return {"error": str(error)}


def _work_tree(repository: Path) -> dict[str, Any]:
    lines = git(repository, "status", "--porcelain=v2", "--branch").decode(errors="replace").splitlines()
    heads = {line.split()[1]: line.split(maxsplit=2)[2] for line in lines if line.startswith("# branch.")}
    committed = heads["branch.oid"] != "(initial)"
    changed = [line for line in lines if not line.startswith(("# ", "? "))]
    diff = git(repository, "diff", "HEAD", "--no-ext-diff", "--no-textconv") if committed and changed else b""
    return {
        "repository": str(repository),
        "commit": heads["branch.oid"] if committed else None,
        "branch": None if heads["branch.head"] == "(detached)" else heads["branch.head"],
        "remote": _remote(repository),
        "dirty": any(not line.startswith("# ") for line in lines),
        "diff": diff[:_LONGEST_DIFF].decode(errors="replace"),
        "diff_cut": len(diff) > _LONGEST_DIFF,
        "untracked": [line[2:] for line in lines if line.startswith("? ")],
    }


def _remote(repository: Path) -> str | None:
    try:
        return without_login(git(repository, "remote", "get-url", "origin").decode(errors="replace").strip())
    except GitError:
        return None
