"""The end of a rank's process, made safe: gloo's threads must be done before the interpreter is torn down.

A worker of gloo that is the last to hold a tensor of Python's asks for the GIL to free it. While the interpreter is
being finalized CPython ends any thread that asks, in the middle of a C++ destructor, and the process dies of SIGABRT
("terminate called without an active exception") after a training that went well. Seen with torch 2.13 on a busy
machine in one of three runs of plain DDP; pytorch/pytorch#179291 describes the same.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

_WORKER = "pt_gloo_runloop"
"""torch's name of these threads: 15 characters, as many as Linux keeps."""
_LOOK_EVERY_S = 0.05
_PATIENCE_S = 5.0


@functools.cache  # once per process
def end_gently() -> None:
    """Have the exit of this process wait for gloo's threads; a process that has none is not held up.

    So does the end of its process groups: a DDP module that outlives them holds the last reference, and when it goes it
    joins the threads with the GIL in its hands, for which one of them may wait (torch 2.13, seen for ever).
    """
    atexit.register(_let_workers_finish)
    destroy = dist.destroy_process_group

    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        _wait_for_workers()
        destroy(*args, **kwargs)

    dist.destroy_process_group = destroy_process_group


def _let_workers_finish() -> None:
    _wait_for_workers()
    gc.collect()  # a process group held by nothing but the cycles of a DDP module joins its threads when it goes
    _wait_for_workers()


def _wait_for_workers() -> None:
    deadline = time.monotonic() + _PATIENCE_S
    states = _worker_states()
    while states and time.monotonic() < deadline:  # of groups that live to the end
        time.sleep(_LOOK_EVERY_S)  # leaves them the GIL; a worker that sleeps after that has nothing to free
        states = _worker_states() - {"S"}


def _worker_states() -> set[str]:
    """States of gloo's threads, as proc(5) has them: R runs or waits for a core, S sleeps."""
    found = set()
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            name, _, rest = (thread / "stat").read_text().partition("(")[2].rpartition(")")
            found |= {rest.split()[0]} if name == _WORKER else set()
    return found
