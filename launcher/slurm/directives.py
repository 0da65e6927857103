"""sbatch options as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

Value = str | int | bool
"""``True`` is a flag without a value; options that are not wanted are left out, never set to ``False``."""


def as_arguments(directives: Mapping[str, Value]) -> list[str]:
    """The options as arguments of sbatch."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in directives.items()]


def as_header(directives: Mapping[str, Value]) -> list[str]:
    """The options as lines of a script."""
    return [
        f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={shlex.quote(str(value))}"
        for name, value in for_script(directives).items()
    ]


def for_script(directives: Mapping[str, Value]) -> dict[str, Value]:
    """The options as a script has to give them, but for the quotes.

    sbatch reads quotes in its lines as a shell does; a backslash, however, is an escape for it in single quotes too.
    """
    return {
        name: value.replace("\\", "\\\\") if isinstance(value, str) else value for name, value in directives.items()
    }
