"""The words of a command that composes a run: overrides, our flags, and those that are Hydra's business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.errors import UserError

_HYDRA = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--shell-completion", "-sc", "--resolve", "--package", "-p")


@dataclass
class Arguments:
    """A command line, taken apart."""

    overrides: list[str] = field(default_factory=list)
    config_dirs: list[str] = field(default_factory=list)
    config_name: str | None = None
    output: str | None = None
    template: str | None = None
    json: bool = False
    full: bool = False
    help: bool = False
    version: bool = False
    multirun: bool = False
    hydra: bool = False


def read(argv: Sequence[str], verb: str = "") -> Arguments:
    """Take a command line apart; overrides and flags may stand in any order.

    Raises:
        UserError: a flag that does not exist, or one without its value.
    """
    arguments, words = Arguments(), list(argv)
    arguments.hydra = not verb and any(word.split("=")[0] in _HYDRA for word in words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--config-dir", "-cd"):
            arguments.config_dirs.append(value if equals else _next(words, name))
        elif name in ("--config-name", "-cn") and not arguments.hydra:
            arguments.config_name = value if equals else _next(words, name)
        elif verb in ("render", "bench") and name in ("-o", "--output"):
            arguments.output = value if equals else _next(words, name)
        elif verb == "render" and name == "--template":
            arguments.template = value if equals else _next(words, name)
        elif not _take_flag(arguments, word, verb) and not arguments.hydra:
            if word in ("-m", "--multirun"):  # not taken above
                raise UserError(f"{verb} is for one run: `python -m launcher -m … dry_run=true` shows a sweep")
            if word.startswith("-"):
                raise UserError(f"there is no option '{word}'; `python -m launcher --help` lists them")
            arguments.overrides.append(word)
    return arguments


def _take_flag(arguments: Arguments, word: str, verb: str) -> bool:
    if word in ("-h", "--help"):
        arguments.help = True
    elif word == "--version" and not verb:
        arguments.version = True
    elif word in ("-m", "--multirun") and verb in ("", "render"):
        arguments.multirun = True
    elif word == "--json" and verb in ("plan", "doctor", "bench"):
        arguments.json = True
    elif word == "--full" and verb == "doctor":
        arguments.full = True
    else:
        return False
    return True


def _next(words: list[str], name: str) -> str:
    if not words:
        raise UserError(f"option {name} needs a value")
    return words.pop(0)
