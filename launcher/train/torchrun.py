"""torchrun that leaves SIGTERM to the ranks and reports every rank's true end.

Plain torchrun exits with 1 whatever happened to the ranks, and when Slurm sends SIGTERM to it and to the ranks at
once it kills the ranks while they save. No-op handlers, installed before torchrun's own main, cure the second
(SIG_IGN would be inherited by the ranks; a Python handler is reset to the default by exec).

Usage: ``python -m launcher.train.torchrun TORCHRUN-ARGUMENTS``; the report goes to $LAUNCHER_TORCHRUN_OUTCOME.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

for _number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(_number, lambda *_: None)

from torch.distributed import run as torchrun  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: E402

from launcher.records.files import write_json  # noqa: E402

_SHUTDOWN_S = 5
"""How long torchrun leaves the other ranks of the node after one has failed: they wait for it in a collective."""


def main(arguments: list[str]) -> int:
    """Run torchrun; returns 0 or 1, as torchrun does."""
    parsed = torchrun.parse_args(arguments)
    parsed.signals_to_handle = "SIGINT"
    parsed.shutdown_timeout = _SHUTDOWN_S
    # torchrun takes every argument for a string.Template: $$ would become $, and $local_rank a number
    parsed.training_script_args = [word.replace("$", "$$") for word in parsed.training_script_args]
    try:
        _prepare()
        torchrun.run(parsed)
    except ChildFailedError as error:
        return _report(1, failures=list(_failures(error)))
    except Exception as error:  # of torchrun itself: a rendezvous that failed, a command that does not exist
        return _report(1, message=f"{type(error).__name__}: {error}")
    return _report(0)


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
    sys.exit(main(sys.argv[1:]))
