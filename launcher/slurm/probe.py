"""Run on a node, as a program of its own: its network interfaces and InfiniBand adapters, as one JSON object."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

_ADAPTERS = Path("/sys/class/infiniband")
MADE_BY_SOFTWARE = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "ifb", "dummy", "tun", "tap", "sit")
"""Beginnings of the names of interfaces that lead to no other node."""


def interfaces() -> list[str]:
    """Those that another node may be reached by: not the loopback, not what containers and virtual machines make."""
    return [name for _, name in socket.if_nameindex() if not name.startswith(MADE_BY_SOFTWARE)]


def adapters() -> list[str]:
    """Names of InfiniBand and RoCE adapters."""
    return sorted(path.name for path in _ADAPTERS.iterdir()) if _ADAPTERS.is_dir() else []


if __name__ == "__main__":
    print(json.dumps({"node": os.uname().nodename, "interfaces": interfaces(), "adapters": adapters()}))
