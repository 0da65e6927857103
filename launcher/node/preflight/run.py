"""All topics at once, each in a thread with a deadline; then the judgement."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from typing import Any

from launcher.node.preflight import full, gpus, machine, network, places, software
from launcher.node.preflight.topic import NOT_CHECKED, Topic
from launcher.node.preflight.wanted import Wanted
from launcher.records.preflight import Check, Finding, NodeReport

BUDGET_S = 10.0
TOPICS = (
    gpus.TOPIC,
    machine.TOPIC,
    machine.CLOCK_TOPIC,
    places.RUN_DIR_TOPIC,
    places.SCRATCH_TOPIC,
    network.NAMES,
    network.REVERSE_NAMES,
    network.INTERFACES,
    software.TOPIC,
)
CHECKS: tuple[Check, ...] = (*(check for topic in TOPICS for check in topic.checks), *full.CHECKS, NOT_CHECKED)
"""All that one node can be told to be wrong; what several nodes differ in is in launcher.records.preflight."""


async def preflight(wanted: Wanted, budget_s: float = BUDGET_S) -> NodeReport:
    """Look at this node; never fails, and takes no longer than the budget.

    What hangs is left behind in a thread that nobody waits for, at the end of this process neither.
    """
    began = time.monotonic()
    answers = await asyncio.gather(*(_ask(topic, wanted, min(topic.deadline_s, budget_s)) for topic in TOPICS))
    seen = {topic.name: answer for topic, answer in zip(TOPICS, answers) if isinstance(answer, dict)}
    findings = [answer for answer in answers if isinstance(answer, Finding)]
    for topic in TOPICS:
        if topic.name in seen:
            findings += topic.judge(wanted, seen)
    return NodeReport(wanted.host, seen, tuple(findings), round(time.monotonic() - began, 3))


async def _ask(topic: Topic, wanted: Wanted, deadline_s: float) -> dict[str, Any] | Finding:
    """What the topic saw, or what it means that it saw nothing."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[dict[str, Any] | Finding] = loop.create_future()

    def look() -> None:
        found = _look(topic, wanted, deadline_s)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: answer.done() or answer.set_result(found))

    threading.Thread(target=look, name=f"preflight {topic.name}", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, deadline_s)
    except asyncio.TimeoutError:
        return topic.late(wanted, topic.name, deadline_s)


def _look(topic: Topic, wanted: Wanted, deadline_s: float) -> dict[str, Any] | Finding:
    try:
        return topic.look(wanted, deadline_s)
    except subprocess.TimeoutExpired:
        return topic.late(wanted, topic.name, deadline_s)
    except Exception as error:  # a check that is wrong must not keep a run from starting
        return NOT_CHECKED.finding(wanted.host, f"{topic.name}: {type(error).__name__}: {error}")
