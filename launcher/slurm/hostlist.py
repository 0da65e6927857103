"""Slurm's compressed node lists.

``scontrol show hostnames`` needs a slurm.conf, and answers broken lists with exit code 0 and odd hosts; so the
expansion is ours, and a broken list is an error.
"""

from __future__ import annotations

import itertools
import re

from launcher.errors import LauncherError

_GROUP = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_MOST_HOSTS = 100_000
"""More than any cluster has: a range beyond this is a broken list, not a reason to fill the memory."""


class HostListError(LauncherError):
    """A node list that is not one."""


def expand(text: str) -> list[str]:
    """The hosts of a node list, in its order.

    ``gpu[001-003,7],login`` is gpu001, gpu002, gpu003, gpu7, login; ``r[1-2]n[1-2]`` is r1n1, r1n2, r2n1, r2n2.

    Raises:
        HostListError: unbalanced brackets, an empty or falling range, an empty name.
    """
    groups = _GROUP.findall(text)
    if not groups or ",".join(groups) != text:
        raise HostListError(f"'{text}' is not a node list")
    hosts = [host for group in groups for host in _expand_group(group, text)]
    if len(hosts) > _MOST_HOSTS:
        raise HostListError(f"'{text}' names more than {_MOST_HOSTS} hosts")
    return hosts


def _expand_group(group: str, text: str) -> list[str]:
    pieces = [
        [literal] if literal else [number for item in ranges.split(",") for number in _numbers(item, text)]
        for ranges, literal in _PIECE.findall(group)
    ]
    return ["".join(parts) for parts in itertools.product(*pieces)]


def _numbers(item: str, text: str) -> list[str]:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise HostListError(f"'{item}' is not a range of numbers in the node list '{text}'")
    first, last = match[1], match[2] or match[1]
    if not int(first) <= int(last) < int(first) + _MOST_HOSTS:
        raise HostListError(f"the range '{item}' falls or is too long in the node list '{text}'")
    return [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
