"""``python -m launcher.node.probe_step [PARENT]``: this node's part of an all-reduce test; the request is its input.

Prints what it sees of each rank as it happens, in pieces short enough for an output that nodes share, so that whoever
reads it knows how far every rank came even if this step is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys

from launcher.node import processes
from launcher.node.environment import outside_of_runs
from launcher.node.probe import QUIETLY, Probe, World, probe_command
from launcher.plan.plan import Plan
from launcher.records.probe import RankSeen, Request
from launcher.records.shared_output import in_pieces

WORD = "rank"
"""With which the lines begin that are ours."""


def main(arguments: list[str]) -> int:
    """Run the test here and print what is seen; how it went is no failure of this program."""
    if arguments:
        processes.end_with_parent(int(arguments[0]))
    request = Request.from_json(sys.stdin.read())
    try:
        asyncio.run(_probe(request))
    except asyncio.CancelledError:  # what was seen until then has been printed
        return 128 + signal.SIGTERM
    return 0


async def _probe(request: Request) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # and with it all ranks end
    plan, host = Plan.from_json(request.plan), _host(request)
    several = len(request.ranks) > 1
    world = World(
        request.world_size, request.ranks[host], request.hosts[0] if several else "127.0.0.1", request.port
    )  # fmt: skip
    probe = Probe(world, host, request.deadline_s, Printer())
    command, environment = probe_command(plan, request.backend, request.largest), outside_of_runs(plan, host)
    await probe.run(lambda ours: (command, {**QUIETLY, **environment, **ours}), plan.submit_dir)


def _host(request: Request) -> str:
    """This node by the name that Slurm knows it by, or else by its own."""
    return os.environ.get("SLURMD_NODENAME") or next(iter({*request.hosts} & {socket.gethostname()}), request.hosts[0])


class Printer:
    """Prints what is seen of ranks."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def __call__(self, seen: RankSeen) -> None:
        """One message."""
        print("\n".join(in_pieces(WORD, f"{seen.rank}.{next(self._count)}", seen.to_message())), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
