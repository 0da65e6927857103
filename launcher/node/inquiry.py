"""Why an attempt is being stopped, asked of Slurm as soon as it sends a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from launcher.node.job import Job
from launcher.slurm.fate import Stop

OF_SLURM = ("terminated", "time_limit")
"""Requests that Slurm may have sent, for a reason that it knows."""


class Inquiry:
    """The answers of one attempt, one for each kind of request.

    Not at the attempt's end: this process may be killed before the ranks have saved, and Slurm soon forgets.
    """

    def __init__(self, job: Job | None, hosts: Sequence[str], answered: Callable[[Job, Stop], None]) -> None:
        """`answered` is called in another thread, and may block."""
        self._job, self._hosts, self._answered = job, hosts, answered
        self._asked: dict[str, asyncio.Task[Stop]] = {}

    def about(self, request: str) -> None:
        """Begin to ask, where there is somebody to ask."""
        if self._job is not None and request in OF_SLURM and request not in self._asked:
            self._asked[request] = asyncio.create_task(asyncio.to_thread(self._ask, self._job))

    async def answer(self) -> Stop | None:
        """The newest answer; asked once more where Slurm knew of nothing. None without Slurm, or a request of its."""
        if self._job is None or not self._asked:
            return None
        answers = [await task for task in self._asked.values()]
        known = [stop for stop in answers if stop.cause != "terminated"]
        return known[-1] if known else await asyncio.to_thread(self._job.why_stopped, self._hosts)

    def _ask(self, job: Job) -> Stop:
        stop = job.why_stopped(self._hosts)
        self._answered(job, stop)
        return stop
