"""torchrun that leaves SIGTERM to the ranks and reports every rank's true end.

Plain torchrun exits with 1 whatever happened to the ranks, and when Slurm sends SIGTERM to it and to the ranks at
once it kills the ranks while they save. No-op handlers, installed before torchrun's own main, cure the second
(SIG_IGN would be inherited by the ranks; a Python handler is reset to the default by exec).

Usage: ``python -m launcher.train.torchrun TORCHRUN-ARGUMENTS``; the report goes to $LAUNCHER_TORCHRUN_OUTCOME.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

for _number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(_number, lambda *_: None)


def _end_with_agent() -> None:
    """Have the kernel interrupt this process when its parent dies: torchrun then ends the ranks, as nobody else does.

    PR_SET_PDEATHSIG of prctl(2), before torch is imported, which takes seconds; for a parent that died even earlier
    there is its number, but not in an image, whose runtime is the parent. SIGINT is the one signal that torchrun still
    takes.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGINT, 0, 0, 0)
    agent = os.environ.pop("LAUNCHER_AGENT_PID", "")
    if agent and os.getppid() != int(agent):
        sys.exit("the node agent is gone")


_end_with_agent()

from torch.distributed import run as torchrun  # noqa: E402
from torch.distributed.elastic.multiprocessing.api import SubprocessContext  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: E402

from launcher.records.files import write_json  # noqa: E402
from launcher.train.here import read_plan  # noqa: E402

_FAILURE_GRACE_S = 1
"""How long the other ranks of the node have after one has failed: they wait for it in a collective and cannot save."""


def main(arguments: list[str]) -> int:
    """Run torchrun; returns 0 or 1, as torchrun does."""
    parsed = torchrun.parse_args(arguments)
    parsed.signals_to_handle = "SIGINT"
    # torchrun takes every argument for a string.Template: $$ would become $, and $local_rank a number
    parsed.training_script_args = [word.replace("$", "$$") for word in parsed.training_script_args]
    _end_victims_soon()
    try:
        _prepare()
        torchrun.run(parsed)
    except ChildFailedError as error:
        return _report(1, failures=list(_failures(error)))
    except Exception as error:  # of torchrun itself: a rendezvous that failed, a command that does not exist
        return _report(1, message=f"{type(error).__name__}: {error}")
    return _report(0)


def _end_victims_soon() -> None:
    """Have torchrun kill the other ranks of the node soon after one has failed.

    It leaves them 30 s, and its ``--shutdown-timeout`` is for other ends than this. Only ranks that were asked to stop
    keep the time for it: one may save while another, with no handler for SIGTERM, has died of it.
    """
    close = SubprocessContext._close

    def close_soon(self: SubprocessContext, death_sig: signal.Signals, timeout: int = 30) -> None:
        asked = os.path.exists(os.environ.get("LAUNCHER_STOP_FILE", ""))
        close(self, death_sig, read_plan()["budgets"]["stop_grace_s"] if asked else min(timeout, _FAILURE_GRACE_S))

    SubprocessContext._close = close_soon


def _prepare() -> None:
    """Let the library add to the environment of this node's ranks what only the node can find out."""
    if module := os.environ.get("LAUNCHER_PREPARE"):
        importlib.import_module(module).prepare()


def _failures(error: ChildFailedError) -> Iterator[dict[str, Any]]:
    for rank, failure in error.failures.items():
        yield {
            "rank": rank,
            "local_rank": failure.local_rank,
            "exit_code": failure.exitcode,
            "time": failure.timestamp,  # whole seconds; the agent knows better
            "message": failure.message if os.path.isfile(failure.error_file) else "",  # of an exception under @record
        }


def _report(code: int, failures: list[dict[str, Any]] | None = None, message: str = "") -> int:
    if path := os.environ.get("LAUNCHER_TORCHRUN_OUTCOME"):
        write_json(Path(path), {"code": code, "failures": failures or [], "message": message})
    return code


if __name__ == "__main__":
    if code := main(sys.argv[1:]):
        sys.stderr.flush()
        os._exit(code)  # to take torch apart takes half a second, and the whole job waits for this process
