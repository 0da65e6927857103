"""A copy of the code, taken when a run is submitted: what is edited while the job waits changes nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from launcher.config import schema
from launcher.config.schema import Config, Scheduler
from launcher.errors import UserError
from launcher.plan.snapshot import Snapshot
from launcher.submission.git import GitError, git, repository_of

_MOST_BYTES = 512 * 1024**2
_MOST_FILES = 50_000


def snapshot_for(config: Config, submit_dir: Path, runs_dir: Path, directory: Path) -> Snapshot | None:
    """The snapshot that a run wants, to be taken into `directory`; None where it wants none, or none can be.

    A run on this machine starts at once, so that it needs no copy unless one is asked for.

    Raises:
        UserError: ``snapshot=git`` is said, and there is no repository that git can read.
    """
    wish, runs_dir = config.snapshot, Path(os.path.realpath(runs_dir))
    if wish is schema.Snapshot.off or (wish is None and config.cluster.scheduler is Scheduler.local):
        return None
    try:
        repository = repository_of(submit_dir)
        if repository is None and wish is None:
            return None
        if repository is None:
            raise GitError(f"'{submit_dir}' is in no git repository")
        if repository.is_relative_to(runs_dir):
            raise GitError(f"runs_dir '{runs_dir}' holds the repository itself")
    except GitError as error:
        if wish is schema.Snapshot.git:
            raise UserError(f"snapshot=git: {error}") from error
        print(f"launcher: no snapshot of the code: {error}; with snapshot=off this is not said", file=sys.stderr)
        return None
    return Snapshot(repository, directory, runs_dir, tuple(_python_path()))


def _python_path() -> Iterator[Path]:
    """Where this interpreter finds the user's packages; the first entry is the directory of ``python -m`` itself."""
    for entry in sys.path[1:]:
        path = Path(entry)
        if not path.is_relative_to(sys.prefix) and path.name not in ("site-packages", "dist-packages"):
            yield path.absolute()


def take_snapshot(target: Path, repository: Path, left_out: Path) -> None:
    """Copy what git tracks or would, as it is in the work tree now, and link what git ignores. Complete or absent.

    Data sets are ignored as a rule: through their links the paths to them mean the same as in the repository. What
    stands in `left_out`, the directory of the runs, is neither copied nor linked.

    Raises:
        UserError: git cannot read the repository, or a file; or the copy would be too large.
    """
    left_out = Path(os.path.realpath(left_out))
    with _complete_or_absent(target) as copy:
        files = sorted(_files(repository, left_out))
        _require_small(repository, files)
        for file in files:
            _copy(repository, file, copy)
        for ignored in _ignored(repository, left_out):
            _link(repository / ignored, copy / ignored, left_out)


def repeat_snapshot(target: Path, original: Path) -> None:
    """Copy another run's snapshot. Complete or absent.

    Raises:
        UserError: it is no longer there.
    """
    if not original.is_dir():
        raise UserError(f"the snapshot '{original}' is gone: use --current-code to run the code as it is now")
    with _complete_or_absent(target) as copy:
        shutil.copytree(original, copy, symlinks=True, dirs_exist_ok=True)


@contextlib.contextmanager
def _complete_or_absent(target: Path) -> Generator[Path]:
    """A directory that gets its name when the block has succeeded, and is gone when it has not."""
    copy = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        copy.mkdir(mode=0o700)
        yield copy
        os.rename(copy, target)
    except OSError as error:
        raise UserError(f"snapshot: cannot copy '{error.filename}': {error.strerror}; ignore it in .gitignore, or set"
                        " snapshot=off") from error  # fmt: skip
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _files(repository: Path, left_out: Path) -> Iterator[Path]:
    """The files and links to copy, relative to the repository; with those of submodules and repositories in it."""
    for path in _listed(repository, left_out, "--cached", "--others"):
        there = repository / path
        if there.is_symlink() or there.is_file():  # what is deleted in the work tree is still listed
            yield path
        elif (there / ".git").exists():
            yield from (path / inner for inner in _files(there, left_out))


def _ignored(repository: Path, left_out: Path) -> Iterator[Path]:
    """What git ignores, whole directories where all of one is ignored."""
    for path in _listed(repository, left_out, "--others", "--ignored", "--directory"):
        if path.name != "__pycache__":
            yield path
    for path in _listed(repository, left_out, "--cached", "--others"):
        if (repository / path / ".git").exists():
            yield from (path / inner for inner in _ignored(repository / path, left_out))


def _listed(repository: Path, left_out: Path, *kinds: str) -> Iterator[Path]:
    inside = left_out.is_relative_to(repository)
    but = [f":(top,exclude,literal){left_out.relative_to(repository)}"] if inside else []
    said = git(repository, "ls-files", "-z", *kinds, "--exclude-standard", "--", ":(top)", *but)
    return (Path(os.fsdecode(name)) for name in dict.fromkeys(said.split(b"\0")) if name)


def _require_small(repository: Path, files: Sequence[Path]) -> None:
    sizes = {file: (repository / file).lstat().st_size for file in files}
    total = sum(sizes.values())
    if total > _MOST_BYTES or len(files) > _MOST_FILES:
        largest = max(files, key=lambda file: sizes[file])
        raise UserError(
            f"snapshot: git tracks or does not ignore {len(files)} files with {_mib(total)} in '{repository}', the"
            f" largest is '{largest}' with {_mib(sizes[largest])}, and {_MOST_FILES} files with {_mib(_MOST_BYTES)}"
            " are allowed: ignore data in .gitignore, or set snapshot=off"
        )


def _mib(size: int) -> str:
    return f"{-(-size // 1024**2)} MiB"


def _copy(repository: Path, file: Path, copy: Path) -> None:
    source, target = repository / file, copy / file
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(_link_text(repository, source))
    elif source.is_file():
        shutil.copy2(source, target)


def _link_text(repository: Path, link: Path) -> str:
    """A link's own text, unless it leads out of the repository from where the copy no longer stands beside it."""
    text = os.readlink(link)
    leads_to = Path(os.path.normpath(link.parent / text))
    return text if leads_to.is_relative_to(repository) and not os.path.isabs(text) else str(leads_to)


def _link(source: Path, target: Path, left_out: Path) -> None:
    """Link an ignored file or directory; a directory that holds the runs is linked entry by entry."""
    if source == left_out or os.path.lexists(target):
        return
    if left_out.is_relative_to(source):
        target.mkdir(parents=True)
        for entry in source.iterdir():
            _link(entry, target / entry.name, left_out)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source)
