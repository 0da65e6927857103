"""Where configurations lie: ours, and the user's. Needs the standard library only: completion has no time for more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import UserError

CONFIG_DIR_VARIABLE = "LAUNCHER_CONFIG_DIR"
"""Directories of the user's own tasks, clusters and libraries, separated by colons: the setting written once."""


def builtin_config_dir() -> Path:
    """``conf/``: beside the package in a clone, inside it in an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def user_config_dirs(config_dirs: Sequence[str] = ()) -> list[Path]:
    """The directories given by ``--config-dir`` and by the environment, in that order.

    Raises:
        UserError: one of them is not a directory.
    """
    from_environment = os.environ.get(CONFIG_DIR_VARIABLE, "").split(":")
    found = [Path(os.path.expanduser(text)).absolute() for text in [*config_dirs, *from_environment] if text]
    for path in found:
        if not path.is_dir():
            raise UserError(f"configuration directory '{path}' does not exist (--config-dir or {CONFIG_DIR_VARIABLE})")
    return found


def group_options(config_dirs: Sequence[str] = ()) -> dict[str, list[str]]:
    """The choices of each group of the configuration, by directory look-up alone."""
    return {
        group: sorted({path.stem for root in config_roots(config_dirs) for path in (root / group).glob("*.yaml")})
        for group in ("task", "library", "cluster", "nccl")
    }


def config_roots(config_dirs: Sequence[str]) -> list[Path]:
    """In Hydra's order: where two directories define a name, the first one counts."""
    return [builtin_config_dir(), *user_config_dirs(config_dirs)]
