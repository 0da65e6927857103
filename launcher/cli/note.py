"""``note``: a remark on a run, to be found again."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.errors import UserError
from launcher.records import rundir, sweepdir
from launcher.records.notes import add_note, notes_in
from launcher.slurm.user import user_name

_TEXT = "Keep a remark in the records of a run or a sweep; without a text: show those that there are."


def note(argv: Sequence[str]) -> int:
    """``note RUN|SWEEP [TEXT ...]``."""
    parser = parser_of("note", _TEXT)
    parser.add_argument("run", metavar="RUN|SWEEP", help=f"{RUN_HELP}; or a sweep's")
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the remark; several words are joined by blanks")
    options, runs_dir = parse(parser, argv)
    found = sweepdir.find(runs_dir, options.run) or rundir.find(runs_dir, options.run)
    if text := _as_typed(" ".join(options.text)).strip():
        try:
            add_note(found.path, user_name(), text)
        except OSError as error:
            raise UserError(f"cannot write into '{found.path}': {error.strerror}") from error
    for one in notes_in(found.path):
        print(one.line())
    return 0


def _as_typed(text: str) -> str:
    """A word of the command line, in UTF-8 as terminals write it, whatever the locale of this process."""
    return os.fsencode(text).decode(errors="replace")
