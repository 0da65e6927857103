"""The verdict on a run: ``result.json``, and the line that says it to a person."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launcher.records.columns import is_number
from launcher.records.durations import duration
from launcher.records.files import read_json, write_json

COMPLETED, FAILED, STOPPED = "completed", "failed", "stopped"


@dataclass(frozen=True)
class Result:
    """How a run ended. Names are part of the public contract."""

    outcome: str
    """``completed``, ``failed`` or ``stopped``."""
    cause: str
    """``solved``, ``max_iterations``, ``finished``; ``crash``, ``oom``, ``ranks_out_of_sync``, ``node_lost``,
    ``killed``, ``hang``, ``rendezvous``, ``preflight``, ``setup``, ``launch``;
    ``interrupted``, ``terminated``, ``cancelled``, ``time_limit``, ``preempted``,
    ``requeued``."""
    message: str = ""
    """What happened, in words: the last line of the traceback, the missing hosts."""
    rank: int | None = None
    """The first rank that failed, or that the others wait for."""
    host: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    """Its name."""
    iteration: int | None = None
    """Iterations that were done."""
    world_size: int | None = None
    attempts: int = 1
    ranks_in_sync: bool | None = None
    """Whether the parameters of all ranks were equal at the last checkpoint; None where nobody compared."""
    metrics: dict[str, Any] = field(default_factory=dict)
    hint: str = ""
    """What to do, in a line."""
    known: str = ""
    """The id of the reason of a failed rank, where it is one of :mod:`launcher.records.known`."""
    log: str | None = None
    """The log of the first rank that failed."""
    seconds: float = 0.0
    """From the start of the last attempt to its end."""
    total_seconds: float = 0.0
    """From the start of the first attempt to the end of the last one, with all waits."""
    resumed_at: int = 0
    """Iterations that were done when the attempt started."""
    warnings: list[dict[str, str]] = field(default_factory=list)
    """What was silently wrong in the attempt (docs/diagnosis.md): ``check``, ``severity``, ``message``, ``host``."""
    then: str = ""
    """Of an attempt: what came after it, and why no other attempt where there could have been one."""

    @property
    def progress(self) -> int | None:
        """Iterations that the attempt added; None for a script that does not tell."""
        return None if self.iteration is None else self.iteration - self.resumed_at

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    def line(self) -> str:
        """Of a run one line: outcome, cause, who and where, how far, how long in all."""
        if self.attempts < 2 or not self.total_seconds:
            return self.attempt_line()
        return f"{self.attempt_line()} in attempt {self.attempts}, {_rounded(self.total_seconds)} since attempt 1 began"

    def attempt_line(self) -> str:
        """And of its last attempt alone."""
        parts = [f"{self.outcome}: {self._what()}", *self._progress(), _rounded(self.seconds)]
        return " · ".join(filter(None, parts))

    def _what(self) -> str:
        if self.cause == "hang":  # no rank of it has ended by itself
            return f"hang: {self.message}"
        if self.rank is None:
            return f"{self.cause.replace('_', ' ')}{f' ({self.message})' if self.message else ''}"
        end = how_it_ended(self.exit_code, self.signal)
        return f"rank {self.rank} on {self.host} {end}{f' ({self.message})' if self.message else ''}"

    def _progress(self) -> list[str]:
        found = [f"iteration {self.iteration}" if self.iteration is not None else ""]
        for key, label in (("return_mean", "return"), ("length_mean", "episode length")):
            if is_number(value := self.metrics.get(key)):
                found.append(f"{label} {value:.1f}")
        return found


def _rounded(seconds: float) -> str:
    return duration(round(seconds))


def how_it_ended(exit_code: int | None, signal_name: str | None) -> str:
    """The end of a process in words."""
    return f"was killed by {signal_name}" if signal_name else f"exited with code {exit_code}"


def signal_of(exit_code: int) -> str | None:
    """The name of the signal that an exit code of Python's subprocess stands for; None of an exit."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal
        return f"signal {-exit_code}"


def read_result(path: Path) -> Result | None:
    """The verdict of a run that has ended, or None; what another version writes of it otherwise is left out."""
    record = read_json(path) or {}
    if not (isinstance(record.get("outcome"), str) and isinstance(record.get("cause"), str)):
        return None
    return Result(**{name: value for name, value in record.items() if name in _DEFAULTS and _fits(name, value)})


def _fits(name: str, value: Any) -> bool:
    """Whether a field of a verdict may have this value: one like its default, None only where that is None."""
    default = _DEFAULTS[name]
    if default is None:
        return value is None or isinstance(value, (str, int, float))
    return isinstance(value, (int, float) if isinstance(default, (int, float)) else type(default))


_DEFAULTS = asdict(Result("", ""))
