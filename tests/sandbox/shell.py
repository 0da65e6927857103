"""A shell, or one command, on the login node of a sandbox that lives exactly as long as it does."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from .sandbox import Sandbox

_TRY = "python -m launcher task=cartpole cluster=sandbox cluster.nodes=2 wait=true"
_BASHRC = '[ -f ~/.bashrc ] && . ~/.bashrc\nPS1="(slurm) $PS1"\nPATH={python}:$PATH\n'
"""`python` is the one that started the sandbox, whatever the user's own settings put before it."""


def run_shell(sandbox: Sandbox, command: Sequence[str]) -> int:
    """Run the command, or else the user's shell with a greeting. Return its exit code."""
    environment = sandbox.env
    if not command:
        print(greeting(sandbox), flush=True)
        command, environment = _user_shell(sandbox.root / "etc" / "bashrc", environment)
    with _terminal_restored(), _interrupts_left_to_the_command():
        return _finish(sandbox.popen(command, env=environment))


def greeting(sandbox: Sandbox) -> str:
    nodes = sandbox.run(["sinfo", "-h", "-o", "  partition %R: %D nodes (%N), each %c CPUs, %G"], check=True).stdout
    return (
        f"A private Slurm cluster, real in all but its hardware:\n{nodes}"
        f"Try: sinfo, squeue, sbatch, srun, sacct. For the launcher it is the profile cluster=sandbox:\n  {_TRY}\n"
        f"Logs: {sandbox.root}/log. Leave with `exit`; nothing of it will remain."
    )


def _user_shell(bashrc: Path, environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The user's shell, with a prompt that says where one is."""
    shell = environment.get("SHELL") or "/bin/bash"
    if Path(shell).name == "bash":
        bashrc.write_text(_BASHRC.replace("{python}", shlex.quote(str(Path(sys.executable).parent))))
        return [shell, "--rcfile", str(bashrc), "-i"], environment
    return [shell, "-i"], environment | {"PS1": "(slurm) $ ", "PROMPT": "(slurm) %# "}


@contextmanager
def _terminal_restored() -> Generator[None, None, None]:
    """A shell that was killed leaves its line editor's settings, and itself in the foreground, behind."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    try:
        yield
    finally:
        # Taking the foreground from the background stops a process, unless it ignores that signal.
        handler = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            os.tcsetpgrp(terminal, os.getpgrp())
            termios.tcsetattr(terminal, termios.TCSANOW, settings)
        except (OSError, termios.error):
            pass  # the terminal is gone
        signal.signal(signal.SIGTTOU, handler)


def _finish(process: subprocess.Popen[str]) -> int:
    """Wait for the command, or end it when we are told to end: by SIGTERM, or SIGHUP of a closed terminal."""
    told: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        told.append(number)
        process.kill()

    with _handling(end, signal.SIGTERM, signal.SIGHUP):
        while process.poll() is None:
            time.sleep(0.02)  # not wait(): a signal just before it blocks would be handled only after it
    code = process.returncode
    return 128 + (told[0] if told else -code) if told or code < 0 else code  # as a shell says it: 128 + signal


def _interrupts_left_to_the_command() -> AbstractContextManager[None]:
    """Ctrl-C reaches the command from the terminal, as it reaches us; the command decides."""
    return _handling(lambda *_: None, signal.SIGINT)  # SIG_IGN would be inherited by it


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None], *signals: int) -> Generator[None, None, None]:
    handled = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup stays nohup
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
