"""The next torchrun of this node: a fork of this one that waits, so that ranks which start again import nothing anew.

It is made while torchrun has neither threads nor sockets, and costs the memory of what one of both changes later. An
order of the node agent makes it torchrun, by the means by which a fork becomes a rank (:mod:`launcher.train.forked`).
It waits at a socket of the agent's, and ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from launcher.train import forked


class Next(forked.Order):
    """The order to be torchrun."""


def fork(channel: int) -> Next | None:
    """Fork the process that waits at the socket; returns None to the caller, and to that process its order.

    The caller has the socket no more, nor have the ranks that it forks after this.
    """
    pid = os.fork()
    if pid == 0:
        return _await_order(channel)
    os.close(channel)
    if forked.threads() > 1:  # whose locks the fork may hold for ever
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return None


def _await_order(channel: int) -> Next:
    """Tell the agent who waits, and, when the order is there, that it is."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forked.show([sys.executable, "-u", "-m", "launcher.train.torchrun", "--standby"], os.environ)
    try:
        os.write(channel, b"%d\n" % os.getpid())
        with open(channel, "rb", closefd=False) as orders:
            command, environment, log = json.loads(orders.readline())
        os.write(channel, b"%d\n" % os.getpid())
    except (OSError, ValueError):  # the agent ended, perhaps in the middle of it
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment["LAUNCHER_STANDBY"] = str(channel)
    return Next(command, environment, log, int(environment["LAUNCHER_AGENT_PID"]))
