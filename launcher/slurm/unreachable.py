"""Slurm's commands where no controller answers them, whose complaints name nothing that a person could do."""

from __future__ import annotations

import re

_COMPLAINT = re.compile("establish (a )?config|_establish_config_source")
_HINT = (
    "no Slurm controller answers here: log in to your cluster's login node, or train on this machine (cluster=local)"
)


def with_hint(said: str) -> str:
    """What a command of Slurm's has said; where it has found no controller, with what to do."""
    return f"{said}; {_HINT}" if _COMPLAINT.search(said) else said
