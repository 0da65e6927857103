"""What the commands that look after runs have in common on their command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from launcher.errors import UserError

RUN_HELP = "a run's id or its beginning, its directory, its job's id"


class Parser(argparse.ArgumentParser):
    """argparse, whose complaint about a command line is one line like all others."""

    def error(self, message: str) -> NoReturn:
        """Complain of what is missing or unknown.

        Raises:
            UserError: always.
        """
        verb = self.prog.removeprefix("python -m launcher ")
        raise UserError(f"{verb}: {message}; `{self.prog} --help` says more")


def parser_of(verb: str, text: str) -> Parser:
    """A parser for a verb that looks after runs."""
    usage = f"python -m launcher {verb}"
    return Parser(prog=usage, description=text, epilog="runs_dir=DIR: where the runs are (default: runs)")


def parse(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, Path]:
    """The options, and ``runs_dir=DIR``, which may stand anywhere."""
    places = [word.partition("=")[2] for word in argv if word.startswith("runs_dir=")]
    options = parser.parse_intermixed_args([word for word in argv if not word.startswith("runs_dir=")])
    return options, Path(os.path.expanduser((places or ["runs"])[-1])).absolute()
