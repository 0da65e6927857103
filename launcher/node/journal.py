"""What node 0 writes of an attempt while it goes on; a disk that is full is no reason to end a training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from launcher.node.place import Place
from launcher.node.ranks import Start
from launcher.records.files import append_json_line, write_json
from launcher.records.preflight import Finding, NodeReport
from launcher.records.rundir import Attempt


class Journal:
    """The records of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def note(self, event: str, **facts: Any) -> None:
        """For whoever looks into it later."""
        with contextlib.suppress(OSError):
            append_json_line(self._attempt.events, {"time": time.time(), "event": event, **facts})

    def preflight(self, report: NodeReport, findings: Sequence[Finding], speed: str) -> None:
        """What it found on a node, and, with the last node's, between the nodes."""
        found = [vars(one) for one in findings]
        self.note("preflight", host=report.host, seconds=report.seconds, findings=found, all_reduce=speed)

    def rendezvous(self, place: Place, start: Start, resumed_at: int) -> None:
        """For status, and for the verdict: the checkpoint itself may be gone by then."""
        hosts = [place.hosts[node] for node in start.nodes]
        facts = {"job_id": place.job_id, "hosts": hosts, "resumed_at": resumed_at, "time": time.time()}
        with contextlib.suppress(OSError):
            write_json(self._attempt.rendezvous, {**asdict(start), **facts})
