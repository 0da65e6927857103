"""A command line without what is not for everyone's eyes: values of options whose names say so, logins in addresses."""

from __future__ import annotations

import re

from launcher.plan.plan import SECRET

_NAMED = re.compile(
    rf"""(?P<name>[\w.-]*(?:{SECRET.pattern})[\w.-]*['"]?\s*[=:,]\s*)"""
    r"""(?P<value>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s,'"\]}]+)""",
    re.IGNORECASE | re.DOTALL,
)
_LOGIN = re.compile(r"(?P<scheme>\w+://)[^/@\s]+@")


def mask(text: str) -> str:
    """A word of a command line without its secrets: what follows a secret name, and the login in an address."""
    return without_login(_NAMED.sub(lambda match: match["name"] + "********", text))


def without_login(url: str) -> str:
    """An address without the user and the password that may stand in it."""
    return _LOGIN.sub(lambda match: match["scheme"], url)
