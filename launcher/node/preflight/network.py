"""Names, addresses and interfaces."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.node.links import links, ports
from launcher.node.preflight.machine import adapters
from launcher.node.preflight.topic import Topic
from launcher.node.preflight.wanted import Wanted
from launcher.records.preflight import ERROR, WARNING, Check, Facts, Finding

_DEADLINE_S = 5.0
_SLOW_S = 1.0
_DISCARD_PORT = 9
_HOSTS = "have the administrators correct /etc/hosts or the name service there"

MASTER = Check(
    "master-name", "a name of the master that leads nowhere: unknown, loopback, or without a route",
    f"ranks here would wait for it in vain; {_HOSTS}",
)  # fmt: skip
OWN = Check(
    "own-name", "a node whose own name leads to loopback or nowhere, so that gloo's peers cannot reach it",
    f"set cluster.network_interface to the interface that connects the nodes, or {_HOSTS}", (ERROR, WARNING),
)  # fmt: skip
SPEED = Check(
    "name-speed", "look-ups of names or addresses that take more than a second",
    "torchrun makes some at its start and waits for each; have the resolver in /etc/resolv.conf looked at", (WARNING,),
)  # fmt: skip
INTERFACE = Check(
    "interface", "an interface named by NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME that is not there",
    "correct cluster.network_interface or cluster.env (for some hosts only: an entry of your own in nccl/)",
)  # fmt: skip
ADAPTER = Check("adapter", "no InfiniBand adapter of those named by NCCL_IB_HCA", "correct cluster.ib_hca", (WARNING,))


def _look_at_names(wanted: Wanted, _: float) -> dict[str, Any]:
    return {"master": _resolve(wanted.master), "own": _resolve(socket.gethostname())}


def _resolve(name: str) -> dict[str, Any]:
    """The addresses of a name, and whether there is a way to one of them."""
    began = time.monotonic()
    try:
        found = socket.getaddrinfo(name, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        return {"name": name, "addresses": [], "route": False, "problem": str(error), "seconds": _since(began)}
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    seconds = _since(began)
    route = any(_has_route(family, address) for family, _, _, _, address in found)
    return {"name": name, "addresses": addresses, "route": route, "seconds": seconds}


def _since(began: float) -> float:
    return round(time.monotonic() - began, 4)


def _has_route(family: int, address: Any) -> bool:
    """Connecting a datagram socket sends nothing; the kernel says whether it knows a way."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
    except OSError:
        return False
    return True


def _judge_names(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    master, own = facts["names"]["master"], facts["names"]["own"]
    if wanted.several and wanted.host != wanted.master and (what := _wrong(master)):
        yield MASTER.finding(wanted.host, f"the master {master['name']} {what}")
    if wanted.several and "GLOO_SOCKET_IFNAME" not in wanted.environment and (what := _wrong(own)):
        severity = ERROR if wanted.device == "cpu" or wanted.gpus == 0 else WARNING  # NCCL goes by interfaces
        yield OWN.finding(wanted.host, f"its own name {own['name']} {what}", severity)
    for seen in {master["name"]: master, own["name"]: own}.values():
        if seen["seconds"] > _SLOW_S:
            yield SPEED.finding(wanted.host, f"the look-up of {seen['name']} took {seen['seconds']:.1f} s")


def _wrong(seen: Mapping[str, Any]) -> str:
    if not seen["addresses"]:
        return f"is unknown here ({seen['problem']})"
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in seen["addresses"]):
        return f"resolves to {', '.join(seen['addresses'])} (loopback) here"
    return "" if seen["route"] else f"resolves to {', '.join(seen['addresses'])}, and there is no route to it"


def _late_names(wanted: Wanted, _: str, seconds: float) -> Finding:
    return SPEED.finding(wanted.host, f"the look-up of {wanted.master} had no answer within {seconds:g} s", WARNING)


NAMES = Topic("names", _look_at_names, _judge_names, _DEADLINE_S, _late_names, (MASTER, OWN, SPEED))


def _look_back(wanted: Wanted, _: float) -> dict[str, Any]:
    """How long it takes to find the names of addresses, which torchrun does at its start."""
    began = time.monotonic()
    for name in {wanted.master, socket.gethostname()}:
        socket.getfqdn(name)
    return {"seconds": _since(began)}


def _judge_back(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    seconds = facts["reverse_names"]["seconds"]
    if seconds > _SLOW_S:
        yield SPEED.finding(wanted.host, f"finding the names of addresses took {seconds:.1f} s")


def _late_back(wanted: Wanted, _: str, seconds: float) -> Finding:
    return SPEED.finding(wanted.host, f"finding the names of addresses had no end within {seconds:g} s")


REVERSE_NAMES = Topic("reverse_names", _look_back, _judge_back, _DEADLINE_S, _late_back)


def _look_at_interfaces(wanted: Wanted, _: float) -> dict[str, Any]:
    interfaces = [name for _, name in socket.if_nameindex()]
    return {"interfaces": interfaces, "adapters": adapters(), "links": links(interfaces), "ports": ports(adapters())}


def _judge_interfaces(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    there, seen_adapters = facts["interfaces"]["interfaces"], facts["interfaces"]["adapters"]
    for variable, named, found in _named(wanted.environment, there):
        if not found:
            yield INTERFACE.finding(wanted.host, f"{variable} names {named}, and there are {', '.join(there)}")
    wish = wanted.environment.get("NCCL_IB_HCA", "")
    if wish and not wish.startswith("^") and not _nccl_finds(wish, seen_adapters):
        has = ", ".join(seen_adapters) or "none"
        yield ADAPTER.finding(wanted.host, f"NCCL_IB_HCA names {wish}, and of adapters there are {has}")


def _named(environment: Mapping[str, str], there: list[str]) -> Iterator[tuple[str, str, bool]]:
    """The variable, what it names, and whether that is there: one of them for NCCL, each of them for gloo."""
    nccl = environment.get("NCCL_SOCKET_IFNAME", "")
    if nccl and not nccl.startswith("^"):
        yield "NCCL_SOCKET_IFNAME", nccl, _nccl_finds(nccl, there)
    for name in filter(None, environment.get("GLOO_SOCKET_IFNAME", "").split(",")):
        yield "GLOO_SOCKET_IFNAME", name, name in there


def _nccl_finds(wish: str, there: list[str]) -> bool:
    """NCCL takes names as beginnings, unless an equals sign stands before the list; a port may follow a name."""
    names = [name.partition(":")[0] for name in wish.lstrip("=").split(",")]
    if wish.startswith("="):
        return bool({*names} & {*there})
    return any(one.startswith(name) for one in there for name in names)


INTERFACES = Topic("interfaces", _look_at_interfaces, _judge_interfaces, checks=(INTERFACE, ADAPTER))
