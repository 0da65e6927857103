"""A whole terminal that is drawn anew again and again, and is as it was before when that ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from launcher.errors import LauncherError

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""xterm's sequences, which every terminal of today knows: another screen, no cursor, no wrapped lines."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_ENDS = (signal.SIGTERM, signal.SIGHUP)

Style = str
PLAIN, BOLD, DIM, RED, GREEN, YELLOW = "", "1", "2", "31", "32", "33"
Line = tuple[str, Style]


class Screen:
    """Takes the terminal of this process. What is typed does not show, and is read by :meth:`key`."""

    def __init__(self) -> None:
        self._shown: tuple[Sequence[Line], os.terminal_size] | None = None
        self._coloured = "NO_COLOR" not in os.environ  # no-color.org
        self._before: list[Any] = []

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(sys.stdin)
        quiet = termios.tcgetattr(sys.stdin)
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        for ending in _ENDS:
            signal.signal(ending, _end)
        signal.signal(signal.SIGCONT, self._again)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone, as after SIGHUP
            self._write(_LEAVE)
            if not isinstance(error, LauncherError):  # it has something else to say
                self._leave_behind()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, self._before)

    def _leave_behind(self) -> None:
        """What was shown last stays to be read."""
        lines = self._shown[0] if self._shown else ()
        self._write("".join(f"{self._styled(text, style)}\n" for text, style in lines))

    @property
    def size(self) -> os.terminal_size:
        """As it is now; the variables COLUMNS and LINES know nothing of a window that is drawn larger."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            size = os.terminal_size((0, 0))
        return size if size.columns and size.lines else shutil.get_terminal_size()

    def draw(self, lines: Sequence[Line]) -> None:
        """Show lines from the top on; what does not fit is left out. The same again costs nothing."""
        size = self.size
        if self._shown == (lines, size):
            return
        self._shown = lines, size
        shown = [self._styled(text[: size.columns], style) for text, style in lines[: size.lines]]
        self._write(_HOME + "\n".join(f"{line}{_REST_OF_LINE}" for line in shown) + _REST_OF_SCREEN)

    def key(self, wait_s: float) -> str:
        """A key that was pressed within so many seconds, or nothing; returns early for a key."""
        if not select.select([sys.stdin], [], [], wait_s)[0]:
            return ""
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace")

    def _styled(self, text: str, style: Style) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if style and self._coloured else text

    def _again(self, _signal: int, _frame: FrameType | None) -> None:
        """After Ctrl-Z and fg the shell has had the terminal."""
        self._shown = None
        self._write(_ENTER)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
