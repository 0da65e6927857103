"""The agents' control channel: JSON lines over TCP between node 0 and every other node.

Both ends prove that they know the run's secret before anything else is said, so a stranger that holds the port, or
connects to it, is found out within seconds instead of being waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from launcher.node import ports

Message = dict[str, Any]

_HANDSHAKE_S = 5.0
_CONNECT_S = 2.0
_RETRY_S = 0.1
SILENCE_S = 20
"""After so many seconds a peer that answers nothing counts as gone: the idle time and the probes below."""
_SILENCE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_LONGEST = 1 << 20
"""Bytes of a line: a report of one node with all its failures is far below."""


class HandshakeError(Exception):
    """The other end does not know the secret, or speaks another language."""


class Channel:
    """A connection to another agent, after the handshake."""

    silent = False
    """The other end is gone without a word, not even from its kernel: its node is dead, or cut off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        _notice_silence(writer.get_extra_info("socket"))

    def send(self, message: Message) -> None:
        """Queue a message; a lost connection shows at the receiving side of both ends."""
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Message | None:
        """The next message, or None when the other end is gone."""
        try:
            line = await self._reader.readline()
            message = json.loads(line) if line.endswith(b"\n") else None
        except OSError as error:
            self.silent = error.errno in _SILENCE
            return None
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    async def close(self) -> None:
        """Send what is queued, then close."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), _HANDSHAKE_S)
        self._writer.close()


class Server:
    """Node 0's end: hands over the channel of every node that proves to be one of this start."""

    def __init__(self, key: str, secret: str, joined: Callable[[int, Channel], Awaitable[None]]) -> None:
        self._key = key
        self._secret = secret
        self._joined = joined
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._accept, sock=ports.listen(self._key), limit=_LONGEST)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            channel = Channel(reader, writer)
            node = await asyncio.wait_for(_admit(channel, self._key, self._secret), _HANDSHAKE_S)
            await self._joined(node, channel)
        except (HandshakeError, OSError, asyncio.TimeoutError):
            pass  # a stranger; the nodes that do not come are named at the deadline
        finally:
            writer.close()
            self._tasks.discard(task)


def _notice_silence(connection: socket.socket) -> None:
    """Have the kernel probe an idle peer: a node that loses power closes nothing."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)


async def connect(host: str, start_id: Callable[[], str], secret: str, node: int, seconds: float) -> Channel:
    """The channel to node 0, which may not be there yet and may listen on any of the candidate ports.

    Raises:
        asyncio.TimeoutError: it was not to be found for so long. No `wait_for` around this would be as sure: inside
            of it are others, and a cancellation that comes when one of them is just done is lost in Python 3.11.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + seconds
    while now() < deadline:
        key = start_id()
        for port in ports.candidates(key):
            with contextlib.suppress(HandshakeError, OSError, asyncio.TimeoutError):
                return await _try(host, port, key, secret, node)
        await asyncio.sleep(_RETRY_S)
    raise asyncio.TimeoutError


async def _try(host: str, port: int, key: str, secret: str, node: int) -> Channel:
    opening = asyncio.open_connection(host, port, limit=_LONGEST)
    reader, writer = await asyncio.wait_for(opening, _CONNECT_S)
    channel = Channel(reader, writer)
    try:
        await asyncio.wait_for(_introduce(channel, key, secret, node), _HANDSHAKE_S)
    except BaseException:
        writer.close()
        raise
    return channel


async def _admit(channel: Channel, key: str, secret: str) -> int:
    """Node 0's side of the handshake; returns the number of the node that has come."""
    ours = secrets.token_hex(16)
    channel.send({"nonce": ours})
    hello = await channel.receive() or {}
    node, theirs = hello.get("node"), hello.get("nonce")
    if not isinstance(node, int) or not isinstance(theirs, str):
        raise HandshakeError
    _check(hello, _proof(secret, key, "member", str(node), ours, theirs))
    channel.send({"proof": _proof(secret, key, "leader", str(node), ours, theirs)})
    return node


async def _introduce(channel: Channel, key: str, secret: str, node: int) -> None:
    """A node's side of the handshake."""
    theirs = (await channel.receive() or {}).get("nonce")
    if not isinstance(theirs, str):
        raise HandshakeError
    ours = secrets.token_hex(16)
    proof = _proof(secret, key, "member", str(node), theirs, ours)
    channel.send({"node": node, "nonce": ours, "proof": proof})
    _check(await channel.receive() or {}, _proof(secret, key, "leader", str(node), theirs, ours))


def _check(message: Message, expected: str) -> None:
    if not hmac.compare_digest(str(message.get("proof")), expected):
        raise HandshakeError


def _proof(secret: str, *said: str) -> str:
    return hmac.new(secret.encode(), "|".join(said).encode(), hashlib.sha256).hexdigest()
