"""What tells the runs of a sweep from each other: pure functions of their overrides."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

Value = str | int | float | None
"""None: the run does not have the key."""

_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")


def varying(overrides: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Value]]:
    """Of each run the values of the keys in which not all runs agree, in the order of the words.

    Args:
        overrides: the words of each run, ``KEY=VALUE``, by its id.
    """
    chosen = {run_id: dict(map(_taken_apart, words)) for run_id, words in overrides.items()}
    keys = dict.fromkeys(key for values in chosen.values() for key in values)
    differ = [key for key in keys if len({str(values.get(key)) for values in chosen.values()}) > 1]
    return {run_id: {key: values.get(key) for key in differ} for run_id, values in chosen.items()}


def _taken_apart(word: str) -> tuple[str, Value]:
    key, _, value = word.partition("=")
    return key.lstrip("+"), value_of(value)


def value_of(text: str) -> Value:
    """A number where it is one, else the text, without the quotes around it."""
    if quoted := _QUOTED.fullmatch(text):
        return re.sub(r"\\(.)", r"\1", quoted[1] if quoted[1] is not None else quoted[2])
    try:
        value = float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return int(value) if value == int(value) and abs(value) < 1e15 else value
