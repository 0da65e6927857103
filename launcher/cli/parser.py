"""What the commands that look after runs have in common on their command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

RUN_HELP = "a run's id or its beginning, its directory, its job's id"


def parser_of(verb: str, text: str) -> argparse.ArgumentParser:
    """A parser for a verb."""
    usage = f"python -m launcher {verb}"
    return argparse.ArgumentParser(
        prog=usage, description=text, epilog="runs_dir=DIR: where the runs are (default: runs)"
    )


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, Path]:
    """The options, and ``runs_dir=DIR``, which may stand anywhere."""
    places = [word.partition("=")[2] for word in argv if word.startswith("runs_dir=")]
    options = parser.parse_intermixed_args([word for word in argv if not word.startswith("runs_dir=")])
    return options, Path((places or ["runs"])[-1]).expanduser().absolute()
