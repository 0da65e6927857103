"""The run that this process belongs to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from launcher.records.files import read_json


def read_plan() -> dict[str, Any]:
    """The plan of the run that LAUNCHER_RUN_DIR names.

    Raises:
        RuntimeError: there is none.
    """
    plan = read_json(Path(os.environ["LAUNCHER_RUN_DIR"]) / "plan.json")
    if plan is None:
        raise RuntimeError("no plan.json in LAUNCHER_RUN_DIR")
    return plan
