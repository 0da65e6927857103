"""``python -m launcher``: which command is meant, and what it ends with."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

import launcher
from launcher.cli.arguments import Arguments, read
from launcher.errors import LauncherError, UserError

_NEEDED = ("hydra", "omegaconf", "yaml", "submitit", "jinja2")
"""What the launcher itself is made of; anything else that is missing is a fault of ours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code. Mistakes end in one line on stderr, never in a traceback."""
    _take_any_text()
    try:
        code = _answer(list(sys.argv[1:] if argv is None else argv))
    except SystemExit:  # argparse has shown its help
        if (failed := _hand_out()) is not None:
            return failed
        raise
    failed = _hand_out()
    return code or failed or 0


def _answer(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
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
        _drop_the_rest()
        return 0
    except OSError as error:
        if error.filename is not None:  # what a stream cannot take has no name
            raise
        return _full(error)


_TAKES_ALL = ("surrogateescape", "utf-8")


def _take_any_text() -> None:
    """Have the standard output be there, and take what a rank printed, whatever encoding the terminal has."""
    if sys.stdout is None:  # `>&-`
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    elif isinstance(sys.stdout, io.TextIOWrapper) and (sys.stdout.errors, sys.stdout.encoding) != _TAKES_ALL:
        sys.stdout.reconfigure(errors="replace")


def _hand_out() -> int | None:
    """Write what is still kept, while somebody can be told of a failure; returns the exit code that this asks for."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
        return 0
    except OSError as error:
        return _full(error)
    return None


def _full(error: OSError) -> int:
    _drop_the_rest()
    print(f"launcher: the output cannot be written: {error.strerror}", file=sys.stderr)
    return LauncherError.exit_code


def _drop_the_rest() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(argv: list[str]) -> int:
    if argv and argv[0] in VERBS:
        return _run_verb(argv[0], argv[1:])
    if argv == ["help"]:
        argv = ["--help"]
    if argv and argv[0].isalpha():  # no KEY=VALUE, no option
        raise _no_command(argv[0])
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


def _no_command(word: str) -> UserError:
    from launcher.config.complaints import nearest

    return UserError(f"there is no command '{word}'{nearest(word, VERBS)} (there are: {', '.join(VERBS)})")


def _start(arguments: Arguments) -> int:
    _warn_of_copies()
    if arguments.multirun:
        from launcher.cli.sweep import sweep

        return sweep(arguments)
    from launcher.cli.start import start

    return start(arguments)


def _warn_of_copies() -> None:
    """The habit of ``srun python train.py``: nothing fails, and each copy trains alone."""
    from launcher.slurm.allocation import copies

    if (count := copies(os.environ)) > 1:
        advice = "start it once, without srun, and ask for ranks by cluster.nodes and cluster.nproc_per_node"
        print(f"launcher: warning: srun starts this {count} times, each a run of its own: {advice}", file=sys.stderr)


VERBS = {
    "plan": "launcher.cli.start:show",
    "render": "launcher.cli.start:render",
    "commands": "launcher.cli.start:commands",
    "status": "launcher.cli.status:status",
    "logs": "launcher.cli.logs:logs",
    "why": "launcher.cli.why:why",
    "report": "launcher.cli.report:report",
    "cancel": "launcher.cli.cancel:cancel",
    "resume": "launcher.cli.resume:resume",
    "rerun": "launcher.cli.rerun:rerun",
    "note": "launcher.cli.note:note",
    "rm": "launcher.cli.remove:rm",
    "prune": "launcher.cli.remove:prune",
    "doctor": "launcher.cli.doctor:doctor",
    "nccl": "launcher.cli.nccl:nccl",
    "bench": "launcher.cli.bench:bench",
    "profile": "launcher.cli.profile:profile",
    "completion": "launcher.cli.completion:completion",
}
"""The function of each verb; imported when it is called for."""


def _run_verb(verb: str, argv: list[str]) -> int:
    module, _, function = VERBS[verb].partition(":")
    return getattr(importlib.import_module(module), function)(argv)
