"""The agents' channel, over real sockets on this machine."""

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from launcher.node import control, ports


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


class Joined(dict[int, control.Channel]):
    """Collects who came."""

    def __init__(self) -> None:
        super().__init__()
        self.come = asyncio.Event()

    async def __call__(self, node: int, channel: control.Channel) -> None:
        self[node] = channel
        self.come.set()
        await asyncio.sleep(30)


def test_nodes_that_know_the_secret_meet_and_talk_both_ways() -> None:
    async def work() -> None:
        joined = Joined()
        async with control.Server("job.0", "secret", joined):
            member = await control.connect("127.0.0.1", lambda: "job.0", "secret", 3, 15)
            await joined.come.wait()
            joined[3].send({"kind": "start", "text": 'a "b"\nc é'})
            assert await member.receive() == {"kind": "start", "text": 'a "b"\nc é'}
            member.send({"kind": "report"})
            assert await joined[3].receive() == {"kind": "report"}

    run(work())


def test_the_end_of_one_side_is_seen_by_the_other() -> None:
    async def work() -> None:
        joined = Joined()
        async with control.Server("job.1", "secret", joined):
            member = await control.connect("127.0.0.1", lambda: "job.1", "secret", 1, 15)
            await joined.come.wait()
            await member.close()
            assert await joined[1].receive() is None

    run(work())


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.0\r\n\r\n", b'{"node": 1, "nonce": "x", "proof": "x"}\n', b"[1]\n"]
)
def test_a_stranger_who_connects_is_turned_away_and_the_nodes_still_meet(said: bytes) -> None:
    key = f"job.2.{said!r}"  # a port of its own: the one before may still be closing

    async def work() -> None:
        joined = Joined()
        async with control.Server(key, "secret", joined):
            port = ports.candidates(key)[0]
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            await control.connect("127.0.0.1", lambda: key, "secret", 5, 15)
            await joined.come.wait()
            assert list(joined) == [5]
            writer.close()

    run(work())


def test_a_wrong_secret_does_not_get_in() -> None:
    async def work() -> None:
        joined = Joined()
        async with control.Server("job.3", "secret", joined):
            with pytest.raises(asyncio.TimeoutError):
                await control.connect("127.0.0.1", lambda: "job.3", "guess", 1, 0.5)
            assert not joined

    run(work())


@pytest.mark.parametrize("mute", [True, False])
def test_a_stranger_who_holds_the_port_is_passed_over(mute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_HANDSHAKE_S", 0.5)
    key = f"job.4.{mute}"

    async def stranger(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not mute:
            writer.write(b'{"nonce": "x"}\n{"proof": "x"}\n')
        await asyncio.sleep(30)

    async def work() -> None:
        joined = Joined()
        port = ports.candidates(key)[0]
        async with await asyncio.start_server(stranger, "0.0.0.0", port), control.Server(key, "secret", joined):
            member = await control.connect("127.0.0.1", lambda: key, "secret", 2, 15)
            await joined.come.wait()
            joined[2].send({"kind": "hello"})
            assert await member.receive() == {"kind": "hello"}

    run(work())


def test_two_jobs_on_a_node_get_different_ports_even_from_the_same_candidates() -> None:
    with ports.reserved("same") as first, ports.reserved("same") as second:
        assert first != second


def test_a_reserved_port_can_be_taken_over_by_a_listener_that_shares_addresses_as_torchs_store_does() -> None:
    with ports.reserved("job.5") as port, contextlib.closing(socket.socket()) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()
        with contextlib.closing(socket.create_connection(("127.0.0.1", port), 2)):
            pass


def test_ports_lie_below_the_ephemeral_range_and_are_the_same_for_all_who_know_the_key() -> None:
    for number in range(2000):
        tried = ports.candidates(f"{number}.0.torchrun")
        assert tried == ports.candidates(f"{number}.0.torchrun")
        assert min(tried) >= 10_000 and max(tried) < 32_768
