"""What a container's settings mean, and which of them cannot be."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from launcher.config.schema import Cluster, Container, ContainerRuntime, Scheduler
from launcher.errors import UserError

_NAME = re.compile(r"[A-Za-z_*?][\w*?]*", re.ASCII)


def parse_mount(text: str, workdir: Path) -> tuple[str, str, bool]:
    """Source, target and whether it is read-only, of ``SRC``, ``SRC:DST`` or ``SRC:DST:ro``.

    Raises:
        UserError: it is none of them.
    """
    parts = text.split(":")
    options = parts.pop() if len(parts) > 1 and parts[-1] in ("ro", "rw") else "rw"
    if len(parts) > 2 or not all(parts):
        raise UserError(f"cluster.container.mounts: '{text}' is none of SRC, SRC:DST, SRC:DST:ro")
    source = str(workdir / os.path.expanduser(parts[0]))
    target = parts[1] if len(parts) == 2 else source
    if not target.startswith("/"):
        raise UserError(f"cluster.container.mounts: in '{text}' the place in the container has to begin with /")
    return source, target, options == "ro"


_SEPARATORS = {ContainerRuntime.pyxis: ":,", ContainerRuntime.charliecloud: ":", ContainerRuntime.apptainer: ""}
"""What no path may hold in the options of each runtime."""


def require_mountable(runtime: ContainerRuntime, *paths: str) -> None:
    """Refuse paths that the runtime would take for several.

    Raises:
        UserError: one of them holds the sign that separates them.
    """
    for path in paths:
        for sign in set(path) & set(_SEPARATORS[runtime]):
            raise UserError(f"{runtime.value} cannot mount '{path}': a {sign} separates paths in its options")


def problems(cluster: Cluster) -> Iterator[str]:
    """What is wrong with the settings of the container, one line each."""
    container = cluster.container
    if container.runtime is None:
        if container != Container():
            yield "cluster.container.runtime is missing: pyxis, apptainer or charliecloud"
        return
    if not container.image:
        yield f"cluster.container.image is missing: what {container.runtime.value} shall start"
    if container.runtime is ContainerRuntime.pyxis and cluster.scheduler is not Scheduler.slurm:
        yield "cluster.container.runtime=pyxis is a part of Slurm: without Slurm use apptainer or charliecloud"
    yield from _mounts(container)
    yield from _names(container)


def _mounts(container: Container) -> Iterator[str]:
    for text in container.mounts:
        try:
            _, _, read_only = parse_mount(text, Path.cwd())
        except UserError as error:
            yield str(error)
            continue
        if read_only and container.runtime is ContainerRuntime.charliecloud:
            yield f"cluster.container.mounts: Charliecloud cannot mount '{text}' read-only: leave :ro away"


def _names(container: Container) -> Iterator[str]:
    for name in container.env:
        if not _NAME.fullmatch(name):
            yield f"cluster.container.env: '{name}' is no variable's name; values belong into cluster.env"
        if container.runtime is ContainerRuntime.pyxis and set(name) & set("*?"):
            yield f"cluster.container.env: srun knows no patterns such as '{name}': write the names out"
