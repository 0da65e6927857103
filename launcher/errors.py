"""Every failure that the launcher reports on purpose, with the exit code of the command that meets it."""

from __future__ import annotations


class LauncherError(Exception):
    """Reported as one line: what is wrong, where, and what to do."""

    exit_code = 1


class UserError(LauncherError):
    """The user asked for something that cannot be: a typo, a bad value, a missing file."""

    exit_code = 2


class SchedulerError(LauncherError):
    """Slurm refused, or cannot be reached."""

    exit_code = 3
