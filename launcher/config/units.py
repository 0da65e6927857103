"""Slurm's notations for time and memory, read and written strictly.

sbatch itself accepts ``--time=-1`` (no limit), reads ``90`` as minutes and ``10:00`` as ten minutes, and refuses
``1h`` only after a round trip; here every value is checked before anything is submitted, and the message says
what the notation means.
"""

from __future__ import annotations

import re

from launcher.errors import UserError

_DAYS = re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?", re.ASCII)
_CLOCK = re.compile(r"((?P<hours>\d+):(?=\d+:))?(?P<minutes>\d+)(:(?P<seconds>\d+))?", re.ASCII)
_TIME_HELP = "use minutes (90), hours:minutes:seconds (1:30:00) or days-hours:minutes (2-12:00)"

UNLIMITED = "unlimited"

_MEMORY = re.compile(r"(?P<amount>\d+)(?P<unit>[KMGT]?)B?", re.ASCII | re.IGNORECASE)
_KIB = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}
_MEMORY_HELP = "use a whole number and a unit (512M, 16G, 1T)"


def parse_time(text: str) -> int:
    """Seconds in one of Slurm's six notations of a time limit.

    ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M``, ``D-H:M:S`` (sbatch(1), --time).

    Raises:
        UserError: the text is none of them, or the time is zero.
    """
    match = _DAYS.fullmatch(text.strip()) or _CLOCK.fullmatch(text.strip())
    if match is None:
        raise UserError(f"'{text}' is not a time: {_TIME_HELP}")
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    seconds = ((part.get("days", 0) * 24 + part["hours"]) * 60 + part["minutes"]) * 60 + part["seconds"]
    if seconds == 0:
        raise UserError(f"a time of '{text}' is no time at all: {_TIME_HELP}")
    return seconds


def format_time(seconds: int) -> str:
    """Seconds as Slurm's ``H:M:S`` or ``D-H:M:S``; :func:`parse_time` reads it back unchanged."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}-{clock}" if days else clock


def parse_memory(text: str) -> int:
    """Mebibytes in Slurm's notation of memory; a number without a unit is mebibytes, K is rounded up.

    Raises:
        UserError: the text is no such amount (``0.5G`` is refused by sbatch too), or it is zero.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise UserError(f"'{text}' is not an amount of memory: {_MEMORY_HELP}")
    mebibytes = -(-int(match["amount"]) * _KIB[match["unit"].upper() or "M"] // 1024)
    if mebibytes == 0:
        raise UserError(f"'{text}' of memory is none at all: {_MEMORY_HELP}")
    return mebibytes


def format_memory(mebibytes: int) -> str:
    """Mebibytes in the largest unit that says it exactly; :func:`parse_memory` reads it back unchanged."""
    for unit, size in (("T", 1024**2), ("G", 1024)):
        if mebibytes % size == 0:
            return f"{mebibytes // size}{unit}"
    return f"{mebibytes}M"


def format_bytes(size: float) -> str:
    """Bytes for people, in the largest unit of which there is one at least: ``512 B``, ``2.4 MiB``, ``121.0 GiB``."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if round(size, 1) < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def parse_range(value: object) -> range:
    """The numbers that ``3`` or ``2-4`` names, at least one of them and none below 1.

    Raises:
        UserError: the value is neither.
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(value).strip(), re.ASCII)
    first = int(match[1]) if match else 0
    last = int(match[2] or first) if match else 0
    if not 1 <= first <= last:
        raise UserError(f"'{value}' is no number of nodes: at least 1, or a range such as 2-4")
    return range(first, last + 1)


def parse_budget(value: object) -> int | None:
    """How often something may happen: a number from 0 on; None for ``unlimited``.

    Raises:
        UserError: the value is neither.
    """
    if value == UNLIMITED:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise UserError(f"'{value}' is no number of times: use a number from 0 on, or {UNLIMITED}")


def parse_age(text: str) -> float:
    """Seconds in ``30m``, ``12h``, ``2d`` or ``8w``; fractions are allowed.

    Raises:
        UserError: the text is none of these.
    """
    match = re.fullmatch(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[mhdw])", text, re.ASCII)
    if match is None:
        raise UserError(f"'{text}' is no age: write a number of minutes, hours, days or weeks (30m, 12h, 2d, 8w)")
    return float(match["number"]) * _SECONDS[match["unit"]]


_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
