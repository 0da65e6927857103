"""Slurm's compressed node lists.

``scontrol show hostnames`` needs a slurm.conf, and answers broken lists with exit code 0 and odd hosts; so the
expansion is ours, and a broken list is an error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

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


def compress(hosts: Sequence[str]) -> str:
    """A short list of which :func:`expand` makes these hosts again, each once: ``gpu[001-003,7]``."""
    parts = map(_split, dict.fromkeys(hosts))
    groups = [(prefix, [number for _, number in group]) for prefix, group in itertools.groupby(parts, _prefix)]
    return ",".join(f"{prefix}{_ranges(numbers)}" for (prefix, _), numbers in groups)


def _split(host: str) -> tuple[str, str]:
    """A name, and the number at its end."""
    name = host.rstrip("0123456789")
    return name, host[len(name) :]


def _prefix(parts: tuple[str, str]) -> tuple[str, bool]:
    """Hosts with and without a number do not go together."""
    return parts[0], bool(parts[1])


def _ranges(numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    spans: list[list[str]] = []
    for number in numbers:
        if spans and _follows(spans[-1][-1], number):
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return f"[{','.join('-'.join(span) for span in spans)}]"


def _follows(before: str, number: str) -> bool:
    """``010`` follows ``009``; ``9`` is followed by ``10``, and ``09`` by ``10`` alone."""
    return number == f"{int(before) + 1:0{len(before)}}"


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
