"""What is not for everyone's eyes: values of variables and options whose name says so."""

from __future__ import annotations

import re

MASK = "********"
_MARKS = "KEY|TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|CREDENTIAL"
_NAMED = re.compile(
    rf"""(?P<name>[\w.-]*(?:{_MARKS})[\w.-]*['"]?\s*[=:,]\s*)"""
    r"""(?P<value>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s,'"\]}]+)""",
    re.IGNORECASE | re.DOTALL,
)
_LOGIN = re.compile(r"(?P<scheme>\w+://)[^/@\s]+@")


def is_secret(name: str) -> bool:
    """Whether a name is one of those whose values are kept from sight."""
    return re.search(_MARKS, name, re.IGNORECASE) is not None


def mask(text: str) -> str:
    """A word of a command line without its secrets: what follows a secret name, and the login in an address."""
    return without_login(_NAMED.sub(lambda match: match["name"] + MASK, text))


def without_login(url: str) -> str:
    """An address without the user and the password that may stand in it."""
    return _LOGIN.sub(lambda match: match["scheme"], url)
