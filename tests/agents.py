"""Processes that the commands take for node agents, and others that they must not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from launcher.records.status import agent_alive
from tests.test_local import wait_until


@contextmanager
def agent_of(records: Path) -> Generator[subprocess.Popen[bytes]]:
    """A process that looks like the agent of a run or of a sweep's batch."""
    with lasting(sys.executable, "-c", "import time\ntime.sleep(600)", "launcher.node", str(records)) as process:
        wait_until(lambda: agent_alive(str(records), process.pid))  # for a moment it is still to become that program
        yield process


@contextmanager
def lasting(*words: str) -> Generator[subprocess.Popen[bytes]]:
    """A process that lasts as long as the test, however that ends."""
    with subprocess.Popen(words) as process:
        try:
            yield process
        finally:
            process.kill()
