"""What a rank notes of its early data, and when the ranks compare."""

import time

import pytest
import torch

from launcher.train.peers import EarlyData, Peers

CPU = torch.device("cpu")


def early(*batches: torch.Tensor) -> tuple[int, int]:
    data = EarlyData()
    for batch in batches:
        data.add(batch)
    return data.size, data.digest


def test_the_same_data_have_the_same_digest_and_others_another_one() -> None:
    one, other = torch.arange(100.0), torch.arange(100.0)
    assert early(one, one) == early(other, other)
    other[50] += 1e-5
    assert early(one, one) != early(one, other)
    assert early(one, other) != early(other, one)


def test_only_early_data_are_looked_at() -> None:
    many = [torch.full((2**16,), float(number)) for number in range(8)]
    assert early(*many) == early(*many, torch.ones(2**16))
    assert early(*many)[0] < 2 * 2**20


def test_ranks_compare_after_the_first_iteration_and_then_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_WATCH_SECONDS", "5")
    peers = Peers(0, 2, CPU)
    assert (peers.due(0), peers.due(1)) == (False, True)
    peers._before, peers._then = 1, time.monotonic()
    assert not peers.due(2)
    peers._then -= 10.1
    assert peers.due(2) and not peers.due(1)  # of the same iteration nothing new can be said
    assert not Peers(1, 2, CPU).due(1)  # rank 0 decides


def test_where_nobody_watches_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAUNCHER_WATCH_SECONDS", raising=False)
    assert not Peers(0, 2, CPU).due(1)
