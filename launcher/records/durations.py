"""How long something took, for people."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """``2 d 3 h``, ``1 h 5 min``, ``2 min 7 s``, ``7.3 s``."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size, name, smaller, other in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {other}" if rest else "")
    raise AssertionError
