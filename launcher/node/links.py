"""Network interfaces and InfiniBand ports of this node, as the kernel describes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_INTERFACES, _ADAPTERS = Path("/sys/class/net"), Path("/sys/class/infiniband")


def links(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each interface: its state, its speed in Mbit/s where the driver tells, the largest packet in bytes."""
    return {name: _link(_INTERFACES / name) for name in names}


def _link(place: Path) -> dict[str, Any]:
    speed = _text(place / "speed")
    return {
        "state": _text(place / "operstate"),
        "mbit_s": int(speed) if speed.isdigit() else None,  # -1 of a virtual one
        "mtu": int(_text(place / "mtu") or 0) or None,
    }


def ports(adapters: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each port of InfiniBand or RoCE, by ``adapter:port``: state, rate, layer, and the adapter's NUMA node."""
    found = ((name, place) for name in adapters for place in sorted((_ADAPTERS / name / "ports").glob("*")))
    return {f"{name}:{place.name}": _port(place, _ADAPTERS / name) for name, place in found}


def _port(place: Path, adapter: Path) -> dict[str, Any]:
    return {
        "state": _text(place / "state").partition(": ")[2],  # "4: ACTIVE"
        "rate": _text(place / "rate"),
        "layer": _text(place / "link_layer"),
        "numa": _text(adapter / "device" / "numa_node"),
    }


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # an interface that is down tells no speed
        return ""
