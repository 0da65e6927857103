"""The network: a bridge in the site, and a cable (a veth pair) from it to each node. Texts for `ip -batch`."""

from __future__ import annotations

from pathlib import Path

_LISTEN = "0A"


def bridge_commands() -> str:
    return "link add br0 type bridge\n" + address_commands("br0", "10.77.0.1")


def address_commands(interface: str, address: str) -> str:
    return f"link set lo up\naddr add {address}/16 dev {interface}\nlink set {interface} up\n"


def cable_commands(number: int, pid: int) -> str:
    """Plug the node that lives in the namespace of `pid` into the bridge, as its eth0.

    A node keeps its hardware address when it boots again: the others' ARP tables stay right.
    """
    hardware = f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"
    return (
        f"link add cable{number} type veth peer name eth0 address {hardware} netns {pid}\n"
        f"link set cable{number} master br0 up\n"
    )


def listening(port: int) -> bool:
    """Whether a process of this network namespace listens on that port. (Trying a connection would leave an error
    in the daemon's log.)"""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:]]
    return any(row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port for row in rows)
