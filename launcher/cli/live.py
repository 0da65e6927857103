"""A line at the bottom of the terminal that is drawn anew, with output above it."""

from __future__ import annotations

import shutil
import sys
import time

_PLAIN_EVERY_S = 10.0
"""Seconds between lines where the output is no terminal."""


class LiveLine:
    """Draws on a terminal; elsewhere, as in a file, it prints a line now and then, if it says anything new."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._shown = ""  # last
        self._last_plain = time.monotonic()

    def show(self, line: str, above: str = "", plain: bool = True) -> None:
        """Draw the line, and text above it. `plain` has it printed now and then where there is no terminal."""
        if self._live:
            self._draw(above, line)
        else:
            sys.stdout.write(above)
            if plain:
                self._print_now_and_then(line)
        sys.stdout.flush()

    def say(self, line: str) -> None:
        """Print a line above it."""
        self._draw(f"{line}\n", self._shown) if self._live else print(line, flush=True)

    def close(self) -> None:
        """Leave what is drawn on the terminal."""
        if self._live and self._shown:
            print(flush=True)
            self._shown = ""

    def _draw(self, text: str, line: str) -> None:
        if not text and line == self._shown:
            return
        width = shutil.get_terminal_size().columns - 1
        text = f"{text}\n" if text and not text.endswith("\n") else text
        sys.stdout.write(f"\r\x1b[K{text}{line[:width]}")
        sys.stdout.flush()
        self._shown = line

    def _print_now_and_then(self, line: str) -> None:
        if line not in ("", self._shown) and time.monotonic() - self._last_plain > _PLAIN_EVERY_S:
            self._last_plain, self._shown = time.monotonic(), line
            print(line)
