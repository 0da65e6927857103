"""torchrun that starts ranks as the plan says, leaves SIGTERM to them, and reports every rank's true end.

Plain torchrun exits with 1 whatever happened to the ranks, and when Slurm sends SIGTERM to it and to the ranks at
once it kills the ranks while they save. No-op handlers, installed before torchrun's own main, cure the second
(SIG_IGN would be inherited by the ranks; a Python handler is reset to the default by exec).

Usage: ``python -m launcher.train.torchrun TORCHRUN-ARGUMENTS``; the report goes to $LAUNCHER_TORCHRUN_OUTCOME.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.train import forked, standby
from launcher.train.here import read_plan

_start = read_plan()["start"]


def _begin() -> None:
    """What comes first: before torch is imported, or in a process that has waited to be the next torchrun."""
    for number in forked.HANDLED:
        signal.signal(number, lambda *_: None)
    _end_with_agent()
    if _start["method"] == "fork" and "--nproc-per-node=1" not in sys.argv:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does for the ranks: too late, once torch is loaded


def _end_with_agent() -> None:
    """Have the kernel kill this process when its parent dies, before torch is imported, which takes seconds.

    For a parent that died even earlier there is its number, but not in an image, whose runtime is the parent.
    """
    _when_agent_dies(signal.SIGKILL)
    agent = os.environ.pop("LAUNCHER_AGENT_PID", "")
    if agent and os.getppid() != int(agent):
        sys.exit("the node agent is gone")


def _when_agent_dies(which: signal.Signals) -> None:
    """Get this signal then: SIGINT, the one that torchrun still takes, has it end the ranks, as nobody else does.

    While it waits for the other nodes, in C++, it would take that minutes later; but then it has no ranks.
    """
    ctypes.CDLL(None).prctl(1, which, 0, 0, 0)  # PR_SET_PDEATHSIG


_begin()

from torch.distributed import run as torchrun  # noqa: E402
from torch.distributed.elastic.multiprocessing.api import SubprocessContext  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: E402
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler  # noqa: E402

from launcher.records.files import write_json  # noqa: E402


def main(arguments: list[str]) -> int | forked.Order:
    """Run torchrun; returns 0 or 1, as torchrun does. In the processes that it forks: what they are to run."""
    channel = int(os.environ.pop("LAUNCHER_STANDBY", "-1"))
    parsed = torchrun.parse_args(arguments)
    parsed.signals_to_handle = "SIGINT"
    entry = [parsed.training_script, *parsed.training_script_args]
    # torchrun takes every argument for a string.Template: $$ would become $, and $local_rank a number
    parsed.training_script_args = [word.replace("$", "$$") for word in parsed.training_script_args]
    try:
        _prepare()
        waiting = _forked(int(parsed.nproc_per_node), entry, channel)
        if isinstance(waiting, forked.Order):
            return waiting
        _end_victims_soon()
        _start_ranks(waiting)
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
        asked, budgets = os.path.exists(os.environ.get("LAUNCHER_STOP_FILE", "")), read_plan()["budgets"]
        close(self, death_sig, budgets["stop_grace_s"] if asked else min(timeout, budgets["failure_grace_s"]))

    SubprocessContext._close = close_soon


def _prepare() -> None:
    """Let the library add to the environment of this node's ranks what only the node can find out.

    Aside, for it may ask CUDA, and import what reads the very variables that it finds out.
    """
    if module := os.environ.get("LAUNCHER_PREPARE"):
        forked.aside(lambda: importlib.import_module(module).prepare())


def _forked(count: int, command: list[str], channel: int) -> list[forked.Waiting] | forked.Order:
    """Processes that wait to become the ranks, where the plan wants that and nothing here speaks against it.

    Before them one is forked that waits at the agent's socket to become the next torchrun.
    """
    if _start["method"] != "fork":
        return []
    for name in _start["preload"]:
        with contextlib.suppress(Exception):  # the ranks will say it
            importlib.import_module(name)
    directory = os.getcwd() if command[2] == "-m" else os.path.dirname(os.path.realpath(command[2]))
    if not (reason := forked.why_not(directory)):
        if channel >= 0 and (order := standby.fork(channel)):
            return order
        waiting = forked.fork(count)
        if isinstance(waiting, forked.Order) or forked.threads() == 1:
            return waiting
        for process in waiting:
            process.dismiss()
        reason = f"{forked.threads() - 1} threads run beside torchrun already"
    print(f"the ranks are spawned, each with its own import of torch: {reason}", flush=True)
    return []


def _start_ranks(waiting: list[forked.Waiting]) -> None:
    """Have torchrun start the ranks so, each with both of its streams, in order, in one file named by its global rank.

    torchrun's own redirection opens a file per stream and per local rank, and truncates it.
    """

    def start(self: SubprocessHandler, command: Sequence[str], env: dict[str, str]) -> Any:
        _when_agent_dies(signal.SIGINT)
        log = os.path.join(env["LAUNCHER_LOG_DIR"], f"rank-{env['RANK']}.log")
        if waiting:
            rank = waiting.pop(0)
            rank.send(forked.Order(command, env, log, os.getpid()))
            return rank
        with open(log, "ab") as file:
            return subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    handler: Any = SubprocessHandler
    handler._popen = start


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
    end = main(sys.argv[1:])
    while isinstance(end, standby.Next):
        end.settle()
        _begin()
        end = main(list(end.command[4:]))
    if isinstance(end, forked.Order):
        end.run()
    elif end:
        sys.stderr.flush()
        os._exit(end)  # to take torch apart takes half a second, and the whole job waits for this process
