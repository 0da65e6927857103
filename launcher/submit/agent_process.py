"""What a submitted job runs: the node agent, in place of the process that was started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class RunAgent:
    """The object that submitit pickles: nothing but the run directory's path.

    Called on the node, it replaces submitit's process, which holds numpy and handlers that ignore SIGTERM, by the
    light agent. What the agent finds out is in the run directory; submitit's own result is never written.
    """

    run_dir: str

    def __call__(self) -> None:
        sys.stdout.flush()
        os.execv(sys.executable, agent_command(self.run_dir))


def agent_command(run_dir: str) -> list[str]:
    """The agent's command line, in the interpreter of this process."""
    return [sys.executable, "-u", "-m", "launcher.node", run_dir]
