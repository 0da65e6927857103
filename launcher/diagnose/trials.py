"""One test at a time, on this machine or on nodes of an allocation that is held; nothing of it is left afterwards."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from launcher.diagnose.search import Names, Stopped, Trial
from launcher.diagnose.shapes import Shape, hosts_of
from launcher.plan.plan import Plan, Setting
from launcher.records.preflight import NodeReport, from_lines
from launcher.records.probe import FAILED, HUNG, RankSeen, Request, judge
from launcher.records.shared_output import Messages
from launcher.slurm.held import Held, started
from launcher.submission.on_nodes import environment_here, script_for

_START_S = 15.0
"""For a step to start, and to end, besides the test itself."""
_OTHERS_S = 4.0
"""How long the nodes have to tell what they saw, once a rank has failed."""
_END_S = 15.0
_LEAST_S = 20.0
"""No deadline is shorter than that, unless it was asked for: a node may be busy for a moment."""
INTERRUPTED = "interrupted: what was seen until then"
_FIRST_PORT, _PORTS = 10_000, 20_000
"""Below the ephemeral range, as launcher.node.ports has it."""
_PORT_TRIES = 3

Start = Callable[[Sequence[str], Sequence[str], str], "subprocess.Popen[str]"]
"""Starts a program of ours on some hosts, with a text as its input."""


def on_nodes(plan: Plan, held: Held) -> Start:
    """A way to start programs on nodes of an allocation."""
    return lambda hosts, command, text: held.step(hosts, script_for(plan, command), text)


def here(hosts: Sequence[str], command: Sequence[str], text: str) -> subprocess.Popen[str]:
    """A way to start them on this machine."""
    return started(command, environment_here(), text)


def look(start: Start, plan: Plan, hosts: Sequence[str], budget_s: int) -> list[NodeReport]:
    """What the preflight sees on these hosts, and so of their topology; of a host that does not answer, nothing."""
    process = start(hosts, [sys.executable, "-m", "launcher.node.preflight", str(budget_s)], plan.to_json())
    try:
        output, _ = process.communicate(timeout=budget_s + 2 * _START_S)
    except subprocess.TimeoutExpired:
        output = ""
    finally:
        _end(process)
    return list(from_lines(output).values())


class Trials:
    """Runs tests, each under a deadline."""

    def __init__(
        self, start: Start, plan: Plan, hosts: Sequence[str], backend: str, deadline_s: float, until: float,
        settings: Callable[[Names], Sequence[Setting]], largest: int | None = None,
    ) -> None:  # fmt: skip
        """`until`: on the monotonic clock, when all has to be over. `settings`: what names stand for."""
        self._start, self._plan, self._hosts, self._largest = start, plan, hosts, largest
        self.backend = backend
        self._longest_s, self._until, self._settings = deadline_s, until, settings
        self._port = secrets.randbelow(_PORTS)
        self._worked_s = 0.0  # the longest test that worked

    @property
    def deadline_s(self) -> float:
        """Of the next test: what others have taken several times over, and not more than was asked for."""
        return min(self._longest_s, max(_LEAST_S, 4 * self._worked_s)) if self._worked_s else self._longest_s

    def run(self, shape: Shape, names: Names, why: str = "") -> Trial:
        """Run one test.

        Raises:
            Stopped: there is no time for it, or Ctrl-C.
        """
        trial = self._try(shape, names, why)
        for _ in range(_PORT_TRIES):
            if not any("EADDRINUSE" in seen.error for seen in trial.ranks):
                break
            trial = self._try(shape, names, why)
        return trial

    def _try(self, shape: Shape, names: Names, why: str) -> Trial:
        if time.monotonic() + self.deadline_s + _START_S > self._until:
            raise Stopped("there was no time for the rest: --minutes gives more")
        began = time.monotonic()
        try:
            ranks = self._follow(self._request(shape, names))
        except KeyboardInterrupt:
            raise Stopped(INTERRUPTED) from None
        self.backend = next((seen.facts["backend"] for seen in ranks if "backend" in seen.facts), self.backend)
        trial = Trial(shape, names, judge(ranks), round(time.monotonic() - began, 2), tuple(ranks), why)
        if trial.works:
            self._worked_s = max(self._worked_s, trial.seconds)
        return trial

    def _request(self, shape: Shape, names: Names) -> Request:
        self._port = (self._port + 1) % _PORTS
        plan = replace(self._plan, environment=(*self._plan.environment, *self._settings(names)))
        ranks, port = hosts_of(shape, self._hosts), _FIRST_PORT + self._port
        return Request(plan.to_json(), ranks, port, self.backend, self.deadline_s, self._largest)

    def _follow(self, request: Request) -> list[RankSeen]:
        command = [sys.executable, "-m", "launcher.node.probe_step"]
        own = [str(os.getpid())] if self._start is here else []
        process = self._start(request.hosts, [*command, *own], request.to_json())
        try:
            return follow(process, request)
        finally:
            _end(process)


def follow(process: subprocess.Popen[str], request: Request) -> list[RankSeen]:
    """What the program's output tells of each rank until it ends, is over its deadline, or has said of a failure."""
    seen = {rank: RankSeen(rank, host) for host, ranks in request.ranks.items() for rank in ranks}
    lines, errors = _lines(process.stdout), _lines(process.stderr)
    deadline = time.monotonic() + request.deadline_s + _START_S
    messages = Messages("rank")
    while (line := _next(lines, deadline)) is not None:
        if (message := messages.take(line)) is not None:
            found = RankSeen.from_message(message[1])
            seen[found.rank] = found
            if found.outcome == FAILED:
                deadline = min(deadline, time.monotonic() + _OTHERS_S)
    in_time = time.monotonic() < deadline
    words = [line.strip() for line in _until_now(errors) if line.strip()] if in_time else []
    return [_settled(one, "" if not in_time else (words or ["it said nothing"])[-1]) for one in seen.values()]


def _settled(seen: RankSeen, last_words: str) -> RankSeen:
    """A rank of which nothing more will be heard: it hangs, or failed, where the program ended without a word of it."""
    if seen.outcome:
        return seen
    if last_words:
        return replace(seen, outcome=FAILED, error=f"its node did not tell: {last_words}", ended=time.time())
    return replace(seen, outcome=HUNG, ended=time.time())


_Lines = queue.SimpleQueue["str | None"]


def _lines(stream: object) -> _Lines:
    """The lines of a stream as they come, and None at its end."""
    lines: _Lines = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in stream:  # pyright: ignore[reportGeneralTypeIssues]
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _next(lines: _Lines, deadline: float) -> str | None:
    try:
        return lines.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None


def _until_now(lines: _Lines) -> list[str]:
    found: list[str] = []
    while (line := _next(lines, time.monotonic() + 1)) is not None:
        found.append(line)
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """End the program, and with it what it has started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
