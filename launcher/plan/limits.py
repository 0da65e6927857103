"""What Linux hands to no process: found before anything is written, not by an agent an hour later."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.errors import UserError
from launcher.plan.plan import Plan

_LONGEST_WORD = 128 * 1024 - 1
"""Bytes of one argument, or of one variable with its name: MAX_ARG_STRLEN of execve(2), less the final NUL."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""The names that a shell passes on; dash drops all others."""


def require_possible(plan: Plan) -> None:
    """Check the words and the variables of the ranks, and the way to this package.

    Raises:
        UserError: the first one that cannot be.
    """
    for problem in _problems(plan):
        raise UserError(problem)


def _problems(plan: Plan) -> Iterator[str]:
    if ":" in plan.run_dir:
        yield f"runs_dir: the path '{plan.run_dir}' holds a colon, which separates directories in PYTHONPATH"
    for word in plan.entry:
        if problem := _problem(word):
            yield f"the command of the ranks: the argument '{word[:20]}…' {problem}"
    for setting in plan.environment:
        if not _VARIABLE.fullmatch(setting.name):
            yield f"'{setting.name}' is no name of an environment variable ({setting.origin})"
        if problem := _problem(f"{setting.name}={setting.value}"):
            yield f"the environment variable {setting.name} ({setting.origin}) {problem}"


def _problem(text: str) -> str:
    if "\0" in text:
        return "holds a NUL character, which ends a text for Linux"
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no character"
    if length > _LONGEST_WORD:
        return f"has {length} bytes, and Linux allows {_LONGEST_WORD}: put the text into a file"
    return ""
