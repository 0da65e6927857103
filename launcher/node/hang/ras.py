"""What NCCL says of itself: since 2.24 a thread in each rank answers to lines of text over TCP (NCCL's `ncclras`).

Its words go on record as they are, and blame nobody here: it has called a stalled job healthy, and it names those in
the minority, who may be the ones that wait.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping

from launcher.node.ports import candidates
from launcher.plan.plan import Plan

VARIABLE = "NCCL_RAS_ADDR"
_PROTOCOL = 2
_COLLECT_S = 2
"""How long NCCL may wait for its other processes. It answers for all ranks of the job."""
_PATIENCE_S = 3.0
_MOST_BYTES = 1 << 20
_MOST_LINES, _LONGEST = 6, 200
_HEADING = re.compile(r"^(?P<name>\w[\w ]*)[^\n]*\n=+$", re.MULTILINE)


def address(plan: Plan, environment: Mapping[str, str], key: str) -> str:
    """Where the ranks of a node listen; empty where they are on CPUs.

    The user's own address counts; else one of this attempt, so that another job's ranks on the node do not answer.
    """
    if plan.training["device"] == "cpu":
        return ""
    return environment.get(VARIABLE) or f"localhost:{candidates(f'ras {key}')[0]}"


def ask(where: str) -> str:
    """NCCL's report on the state of the whole job; empty where nobody answers, or not in time."""
    host, _, port = where.rpartition(":")
    with contextlib.suppress(OSError, ValueError), socket.create_connection((host, int(port)), _PATIENCE_S) as talk:
        talk.settimeout(_PATIENCE_S)
        with talk.makefile("rw", encoding="utf-8", errors="replace", newline="\n") as stream:
            for line in (f"CLIENT PROTOCOL {_PROTOCOL}", f"TIMEOUT {_COLLECT_S}"):
                stream.write(f"{line}\n")
                stream.flush()
                if not stream.readline():
                    return ""
            stream.write("VERBOSE STATUS\n")
            stream.flush()
            return stream.read(_MOST_BYTES)
    return ""


def troubles(report: str) -> tuple[str, ...]:
    """The lines of its sections Errors and Warnings."""
    headings = list(_HEADING.finditer(report))
    ends = [heading.start() for heading in headings[1:]] + [len(report)]
    sections = {heading["name"].strip(): report[heading.end() : end] for heading, end in zip(headings, ends)}
    lines = (line.strip()[:_LONGEST] for name in ("Errors", "Warnings") for line in sections.get(name, "").splitlines())
    return tuple(filter(None, lines))[:_MOST_LINES]
