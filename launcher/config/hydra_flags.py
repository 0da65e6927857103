"""Hydra's own flags (``--cfg``, ``--info``, completion …), answered by Hydra itself over our configuration."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import hydra

from launcher.config.compose import store_schema
from launcher.config.directories import builtin_config_dir


def run_hydra(argv: Sequence[str]) -> int:
    """Let Hydra answer a command line that asks it for something; nothing is started."""
    store_schema()
    sys.argv = ["python -m launcher", *argv]
    hydra.main(version_base="1.3", config_path=str(builtin_config_dir()), config_name="config")(_nothing)()
    return 0


def _nothing(config: object) -> None:
    """What Hydra would run, were it not for the flags."""
