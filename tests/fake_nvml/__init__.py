"""A fake of the NVIDIA driver's library, for machines that have none: see nvml.c for what it is and is not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


class NoCompiler(Exception):
    """The library cannot be built here."""


class FakeDriver:
    """The library, and the file that says what it tells."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "says"
        self.says({})

    def says(self, values: Mapping[str, int]) -> None:
        """Tell this from now on, with the keys that nvml.c explains."""
        new = self._file.with_suffix(".new")
        new.write_text("".join(f"{key} {number}\n" for key, number in values.items()))
        new.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """Of the processes that shall meet it."""
        return {"LD_LIBRARY_PATH": str(self._directory), "FAKE_NVML": str(self._file)}


def build(directory: Path) -> FakeDriver:
    """Compile the library into a directory.

    Raises:
        NoCompiler: there is no gcc.
    """
    if shutil.which("gcc") is None:
        raise NoCompiler("needs gcc, for a fake of the NVIDIA driver's library")
    source, library = Path(__file__).with_name("nvml.c"), directory / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["gcc", *options, "-o", str(library), str(source)], check=True, capture_output=True, text=True)
    return FakeDriver(directory)
