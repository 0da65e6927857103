"""What a process of the run is started with on this node: its environment, and the container around it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import launcher
from launcher.errors import LauncherError
from launcher.plan import container
from launcher.plan.plan import Mount, Plan
from launcher.records.rundir import Attempt, RunDir
from launcher.slurm.hostlist import expand
from launcher.slurm.user import user_name


def prepare(
    plan: Plan, attempt: Attempt, host: str, command: Sequence[str], contract: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command as this node starts it, in the image, and its environment: the job's, the plan's, the contract's.

    Raises:
        LauncherError: the image cannot take the mounts.
    """
    ours = {**plan.values(str(attempt.path), lambda hosts: host in expand(hosts)), **contract}
    environment = {**os.environ, **ours}
    if plan.container is None:
        return list(command), _with_our_code(plan, environment)
    if plan.container.runtime == "pyxis":  # this agent is in the image, too, and was handed what may be in it
        return list(command), _with_our_code(plan, {**environment, **container.IN_A_CONTAINER, **ours})
    ours = _with_our_code(plan, ours)  # the host's own search path leads to packages for the host's Python
    names = container.handed_on(plan.container, os.environ, ours)
    environment = {**environment, **container.IN_A_CONTAINER, **ours}
    if plan.container.runtime == "charliecloud":
        environment.setdefault("USER", user_name())  # ch-run does not start without it
        _make_mount_points(plan.container.image, plan.container.mounts)
    return container.wrap(plan, command, names), container.carried(plan.container, environment, names)


def outside_of_runs(plan: Plan, host: str) -> dict[str, str]:
    """The environment of ranks like the plan's, on a host, before there is such a run: for tests of the nodes.

    What would write into the directory of an attempt is left out.
    """
    settings = tuple(setting for setting in plan.environment if not setting.in_attempt)
    values = replace(plan, environment=settings).values(names=lambda hosts: host in expand(hosts))
    return _with_our_code(plan, {**os.environ, **values}, Path(launcher.__file__).resolve().parents[1])


def _with_our_code(plan: Plan, environment: Mapping[str, str], code: Path | None = None) -> dict[str, str]:
    """This package, what lets the agent look into ranks, and the submission's own PYTHONPATH, before all else."""
    copy = code or RunDir(Path(plan.run_dir)).code
    seen = () if plan.budgets.hang is None else (str(copy / "launcher/train/site"),)
    ours = (str(copy), *seen, *plan.import_paths)
    path = dict.fromkeys([*ours, *filter(None, environment.get("PYTHONPATH", "").split(":"))])
    return {**environment, "PYTHONPATH": ":".join(path)}


_FOR_NAMES = ("/etc/hosts", "/etc/resolv.conf")
"""Charliecloud mounts the host's only where the image has them; without them the ranks look for node 0 for ever."""


def _make_mount_points(image: str, mounts: Sequence[Mount]) -> None:
    """Charliecloud mounts only on what the image has, and makes it only in an image that the ranks may change.

    Raises:
        LauncherError: the image is a directory that cannot be written and lacks some.
    """
    root = os.path.realpath(image)
    if not Path(root).is_dir():
        return  # a packed image: it has them, or ch-run says which are missing
    places = [*((name, True) for name in _FOR_NAMES), *((one.target, Path(one.source).is_file()) for one in mounts)]
    for target, is_file in places:
        place = Path(os.path.realpath(root + target))
        if target.startswith("/tmp/") or place.exists() or not place.is_relative_to(root):
            continue  # the host's /tmp is in every container
        try:
            (place.parent if is_file else place).mkdir(parents=True, exist_ok=True)
            if is_file:
                place.touch()
        except OSError as error:
            raise LauncherError(f"cannot make the mount point '{target}' in {image}: {error.strerror}") from error
