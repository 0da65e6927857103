"""Work that may block for ever, as on a file system that hangs: in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """The result of `work`, or what it raises. Unlike `asyncio.to_thread` it never holds up the end of the process."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        settle: Callable[[], object]
        try:
            value = work()
            settle = lambda: result.done() or result.set_result(value)  # noqa: E731
        except Exception as caught:
            error = caught
            settle = lambda: result.done() or result.set_exception(error)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await result
