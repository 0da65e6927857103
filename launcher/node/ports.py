"""Ports that two jobs on one node do not both take."""

from __future__ import annotations

import contextlib
import socket
import zlib
from collections.abc import Generator

from launcher.errors import LauncherError

_FIRST, _LAST = 10_000, 32_000
"""Below Linux's ephemeral range (32768 and up), from which any outgoing connection may take a port."""
_TRIES = 16


def candidates(key: str) -> list[int]:
    """The ports to try, in order, for everyone who knows the key."""
    start = zlib.crc32(key.encode()) % (_LAST - _FIRST - _TRIES)
    return [_FIRST + start + offset for offset in range(_TRIES)]


def listen(key: str) -> socket.socket:
    """A socket that listens on the first candidate that no stranger holds.

    Raises:
        LauncherError: strangers hold them all.
    """
    listener = _bind_first(key)
    listener.listen(4096)  # of more nodes than that some have to try again
    return listener


@contextlib.contextmanager
def reserved(key: str) -> Generator[int]:
    """A port that is held, without listening, until the ranks' rendezvous has taken it over.

    Another agent's attempt to bind it fails as long as it is held, while torchrun's store, which sets SO_REUSEADDR
    as this socket does, can bind and listen.
    """
    with _bind_first(key) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield holder.getsockname()[1]


def _bind_first(key: str) -> socket.socket:
    for port in candidates(key):
        bound = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
        with contextlib.suppress(OSError):
            if bound.family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(("", port))
            return bound
        bound.close()
    raise LauncherError(f"all ports from {candidates(key)[0]} to {candidates(key)[-1]} are taken on this node")
