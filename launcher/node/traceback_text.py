"""The error that a rank's log ends with."""

from __future__ import annotations

import re

_START = "Traceback (most recent call last):"
_ERROR = re.compile(r"(?:\[rank\d+\]:\s*)?(?P<error>[A-Za-z_][\w.]*(?:: .*)?)")
_BARE = re.compile(r"[\w.]*(?:Error|Exception|Interrupt)(?:: .*)?")
_LONGEST = 300


def last_error(text: str) -> str:
    """The exception that the last traceback of a log ends with, as ``Type: message``; empty where there is none.

    The first line at the traceback's own depth that is not part of it: ``ValueError: bad shape``. torch repeats the
    traceback of a rank with the prefix ``[rank0]:``; that form is read too.
    """
    _, found, after = text.rpartition(_START)
    if not found:  # a script that cannot be compiled has no traceback
        last = (text.strip().splitlines() or [""])[-1].strip()
        return last[:_LONGEST] if _BARE.fullmatch(last) else ""
    for line in after.splitlines()[1:]:
        bare = re.sub(r"^\[rank\d+\]:", "", line)
        if bare[:1] == " " and not re.match(r"^ \S", bare):
            continue
        if match := _ERROR.fullmatch(bare.strip()):
            return match["error"][:_LONGEST]
    return ""
