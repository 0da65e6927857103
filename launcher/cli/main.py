"""``python -m launcher``: which command is meant, and what it ends with."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

import launcher
from launcher.cli.arguments import Arguments, read
from launcher.errors import LauncherError, UserError

_NEEDED = ("hydra", "omegaconf", "yaml", "submitit", "jinja2")
"""What the launcher itself is made of; anything else that is missing is a fault of ours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code. Mistakes end in one line on stderr, never in a traceback."""
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except LauncherError as error:
        print(f"launcher: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _NEEDED:
            raise
        hint = "use the Python that it was installed for, such as .venv/bin/python"
        print(f"launcher: {sys.executable} has no package '{error.name}': {hint}", file=sys.stderr)
        return UserError.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `launcher status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(argv: list[str]) -> int:
    if argv and argv[0] in _VERBS:
        return _VERBS[argv[0]](argv[1:])
    arguments = read(argv)
    if arguments.hydra:
        from launcher.config.hydra_flags import run_hydra

        return run_hydra(argv)
    if arguments.help:
        from launcher.cli.help import help_text

        print(help_text(arguments.config_dirs))
        return 0
    if arguments.version:
        print(launcher.__version__)
        return 0
    return _start(arguments)


def _start(arguments: Arguments) -> int:
    if arguments.multirun:
        raise UserError("sweeps (-m) are not there yet: give one run per command")
    from launcher.cli.start import start

    return start(arguments)


def _plan(argv: list[str]) -> int:
    from launcher.cli.start import show

    return show(read(argv, verb="plan"))


def _render(argv: list[str]) -> int:
    from launcher.cli.start import render

    return render(read(argv, verb="render"))


def _rerun(argv: list[str]) -> int:
    from launcher.cli.rerun import rerun

    return rerun(argv)


def _status(argv: list[str]) -> int:
    from launcher.cli.runs import status

    return status(argv)


def _logs(argv: list[str]) -> int:
    from launcher.cli.runs import logs

    return logs(argv)


def _cancel(argv: list[str]) -> int:
    from launcher.cli.runs import cancel

    return cancel(argv)


_VERBS: dict[str, Callable[[list[str]], int]] = {
    "plan": _plan,
    "render": _render,
    "rerun": _rerun,
    "status": _status,
    "logs": _logs,
    "cancel": _cancel,
}
