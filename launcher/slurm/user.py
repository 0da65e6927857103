"""Who runs this: for Slurm, and for the records."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """The user's name, or the number of one whom the system does not know: containers run as such."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return str(os.getuid())
