"""Text that is to stay as it is: OmegaConf reads ``${…}`` in any string, quoted or not, and ``???`` as missing.

As in a shell, single quotes keep what stands between them; in double quotes, and without any, ``${seed}`` is filled in.
"""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from typing import Any

_QUOTED = re.compile(r"""'(?P<single>(?:\\\\)*|.*?[^\\](?:\\\\)*)'|"(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)\"""", re.DOTALL)
"""A quoted value, by the rule of Hydra's OverrideLexer."""
_MISSING = "???"
_MISSING_AS_TEXT = "${oc.decode:\"'???'\"}"


def escape(text: str) -> str:
    """What OmegaConf has to be given to read this text."""
    if text == _MISSING:
        return _MISSING_AS_TEXT
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def plain(value: Any) -> Any:
    """Typed objects as plain data that composes to them again: every string escaped, every choice by its name."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {name: plain(item) for name, item in vars(value).items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def keep_single_quoted(override: str) -> str:
    """An override whose single-quoted values reach the configuration unchanged, whatever they hold."""
    key, equals, value = override.partition("=")
    return f"{key}{equals}{_QUOTED.sub(_kept, value)}"


def quote(text: str) -> str:
    """The text as a single-quoted value of a command line's override."""
    return f"'{_behind_backslashes(text)}'"


def _kept(match: re.Match[str]) -> str:
    inner = match["single"]
    if inner is None:
        return match[0]
    return quote(escape(inner)) if inner == _MISSING else f"'{escape(inner)}'"


def _behind_backslashes(text: str) -> str:
    """Quotes get a backslash; Hydra then wants those doubled that stand before a quote, and no others."""
    return re.sub(r"(\\+)(?=')|(\\+)\Z", lambda match: match[0] * 2, text).replace("'", "\\'")
