"""The hosts of a run without a scheduler."""

from __future__ import annotations

from typing import Any

from launcher.errors import UserError
from launcher.slurm.hostlist import HostListError, expand


def expand_hosts(value: Any) -> list[str]:
    """The hosts that ``cluster.hosts`` names: one text or a list of them, each a name, an address or a node list.

    Raises:
        UserError: a broken node list, or a host that is named twice.
    """
    texts = [] if value is None else [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
    try:
        hosts = [host.strip() for text in texts for host in expand(text)]
    except HostListError as error:
        raise UserError(f"cluster.hosts: {error}") from error
    for host in hosts:
        if not host or any(character.isspace() for character in host) or host.startswith("-"):
            raise UserError(f"cluster.hosts: '{host}' is not a host")
        if hosts.count(host) > 1:
            raise UserError(f"cluster.hosts names {host} twice: a node is one host, with cluster.nproc_per_node ranks")
    return hosts
