"""Messages between the sandbox's processes: JSON texts, and open files, over a socket pair.

The far end's death is seen as the end of the conversation, however it died: this is what ends a sandbox whose
starter was killed.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_LARGEST_MESSAGE = 65536


class Closed(Exception):
    """The other end is gone."""


class Channel:
    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        # SEQPACKET keeps the bounds of messages, and tells of the other end's death.
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Channel:
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._end, [json.dumps(message).encode()], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def receive(self, timeout: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """The next message and the files that came with it; TimeoutError, or Closed."""
        if not self.readable(timeout):
            raise TimeoutError(f"no answer in {timeout} s")
        try:
            text, descriptors, _, _ = socket.recv_fds(self._end, _LARGEST_MESSAGE, 8)
        except ConnectionResetError:
            raise Closed from None
        if not text:
            raise Closed
        return json.loads(text), descriptors

    def readable(self, timeout: float | None) -> bool:
        """Whether a message, or the end, has come."""
        return bool(select.select([self._end], [], [], timeout)[0])

    def forget(self) -> None:
        """Close this copy only: the end goes on in another process."""
        self._end.close()

    def close(self) -> None:
        # The other end shall see it even if a process forked from this one still holds a copy.
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()
