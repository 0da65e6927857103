"""Run by the ranks' interpreter, by its path: the versions of what it has, as one JSON object. Imports none of it."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def versions() -> dict[str, str]:
    """Python, and torch with its CUDA and NCCL where they are installed."""
    torch = _first(["torch"])
    found = {
        "python": platform.python_version(),
        "torch": torch,
        "cuda": _cuda(torch),
        "nccl": _first(["nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"]),
    }
    return {name: text for name, text in found.items() if text}


def _cuda(torch: str) -> str:
    """``12.8`` of ``2.13.0+cu128``; a build without any such mark has its CUDA from a package."""
    _, mark, build = torch.partition("+")
    if torch and not mark:
        return _first(["nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11"])
    digits = build.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else ""


def _first(names: Iterable[str]) -> str:
    return next((text for name in names for text in _installed(name)), "")


def _installed(name: str) -> Iterator[str]:
    """The versions of a package on the search path.

    By the names of its directories: `importlib.metadata` takes 1.6 MiB of the agent's memory, for what reads mail.
    """
    pattern = re.compile(rf"{re.sub('[-_.]+', '[-_.]+', name)}-(?P<version>[^-]+)\.(?:dist|egg)-info", re.IGNORECASE)
    for place in sys.path:
        try:
            found = [pattern.fullmatch(entry.name) for entry in Path(place or ".").iterdir()]
        except OSError:  # a zip, or nothing
            continue
        yield from (match["version"] for match in found if match)


if __name__ == "__main__":
    print(json.dumps(versions()))
