"""Which paths mean something else where a job runs from a copy of the code."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Snapshot:
    """A copy of a git repository, at the place where the job will find it. All paths are absolute."""

    repository: Path
    directory: Path
    """The copy; it need not exist yet."""
    left_out: Path
    """Part of the repository perhaps, but not of the copy: the directory of the runs."""
    python_path: tuple[Path, ...] = ()
    """Where the submitting interpreter looks for the user's packages."""
    copied_from: Path | None = None
    """The copy of an earlier run that this will be a copy of; None for one of the repository as it is now."""

    def locate(self, path: Path) -> Path:
        """Where a path of the repository stands in the copy; any other path as it is."""
        return self._in(self.directory, path)

    def today(self, path: Path) -> Path:
        """Where what will be in the copy can be read before there is one."""
        return path if self.copied_from is None else self._in(self.copied_from, path)

    def _in(self, copy: Path, path: Path) -> Path:
        for spelled in (os.path.normpath(path), os.path.realpath(path)):
            found = Path(spelled)
            if found.is_relative_to(self.repository) and not found.is_relative_to(self.left_out):
                return copy / found.relative_to(self.repository)
        return path

    def import_paths(self) -> tuple[str, ...]:
        """What stands in the copy for the repository's own entries of the import path.

        A package that was installed with `pip install --editable` would otherwise come from the repository.
        """
        return tuple(str(self.locate(path)) for path in self.python_path if self.locate(path) != path)
