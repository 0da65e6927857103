"""Which nodes of the allocation node 0 can count on, and how it reaches them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from launcher.node.control import Channel


class Roster:
    """The nodes by their numbers. Node 0 is always there."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._channels: dict[int, Channel] = {}
        self._unfit: set[int] = set()

    async def welcome(self, node: int, channel: Channel) -> bool:
        """Take in a node that has come; a second agent of the same node is sent away, and the answer is False."""
        if node in self._channels:
            channel.send({"kind": "done", "body": {"code": 1, "why": f"node {node} has already been started"}})
            await channel.close()
            return False
        self._channels[node] = channel
        return True

    def leave(self, node: int) -> None:
        """A node is gone."""
        self._channels.pop(node, None)

    def reject(self, hosts: Iterable[str]) -> None:
        """Do without these from now on: the preflight has found fault with them."""
        self._unfit |= {self._hosts.index(host) for host in hosts}

    @property
    def leader_is_fit(self) -> bool:
        return 0 not in self._unfit

    def present(self) -> list[int]:
        """Those that could train."""
        return [node for node in (0, *sorted(self._channels)) if node not in self._unfit]

    def missing(self) -> list[str]:
        """The hosts from which no agent has come, or whose agent is gone."""
        return [host for node, host in enumerate(self._hosts) if node not in (0, *self._channels, *self._unfit)]

    def broadcast(self, kind: str, body: dict[str, Any]) -> None:
        """Tell all the others."""
        for channel in self._channels.values():
            channel.send({"kind": kind, "body": body})

    async def close(self) -> None:
        """Wait until all have been told, and hang up."""
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
