"""Which groups of ranks are tried, and in which order: first within a node, then across nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Shape = tuple[int, ...]
"""Ranks on each node, node 0 first; a node without any has 0. The nodes after the last one with ranks are left out."""
_EACH_NODE = 8
"""Up to so many nodes every number of them is tried, above only powers of two and all."""


def shapes(nodes: int, ranks_per_node: int) -> list[Shape]:
    """All groups for so many nodes and ranks on each, none twice; the first is one rank alone."""
    return list(dict.fromkeys([(1,), *_within(nodes, ranks_per_node), *_across(nodes, ranks_per_node)]))


def _within(nodes: int, ranks: int) -> Iterator[Shape]:
    """2, 3, 4 … ranks on the first node, then all ranks of each other node."""
    yield from ((count,) for count in range(2, ranks + 1))
    if ranks > 1:
        yield from ((0,) * node + (ranks,) for node in range(1, nodes))


def _across(nodes: int, ranks: int) -> Iterator[Shape]:
    """One rank on each of several nodes; then two nodes filled up rank by rank; then whole nodes."""
    counts = _numbers_of_nodes(nodes)
    yield from ((1,) * count for count in counts)
    if nodes > 1:
        yield from ((ranks, more) for more in range(1, ranks + 1))
    yield from ((ranks,) * count for count in counts if count > 2)


def _numbers_of_nodes(nodes: int) -> list[int]:
    powers = [2**exponent for exponent in range(1, nodes.bit_length())]
    return sorted({*range(2, min(nodes, _EACH_NODE) + 1), *powers, *([nodes] if nodes > 1 else [])})


def hosts_of(shape: Shape, hosts: Sequence[str]) -> dict[str, list[int]]:
    """The ranks on each of its hosts, counted through node by node."""
    placed: dict[str, list[int]] = {}
    first = 0
    for host, count in zip(hosts, shape):
        if count:
            placed[host] = list(range(first, first + count))
            first += count
    return placed


def describe(shape: Shape, hosts: Sequence[str]) -> str:
    """``3 ranks on gpu01 (2), gpu02``."""
    placed = hosts_of(shape, hosts)
    each = {len(ranks) for ranks in placed.values()}
    places = [host if len(ranks) == 1 or len(each) == 1 else f"{host} ({len(ranks)})" for host, ranks in placed.items()]
    return f"{sum(shape)} rank{'s' if sum(shape) > 1 else ''} on {', '.join(places)}"
