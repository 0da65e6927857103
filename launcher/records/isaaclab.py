"""What Isaac Lab's own benchmark has written down of an attempt: a bundle of rank 0, from which ours takes some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.records.files import Record, read_json

DIRECTORY = "isaaclab"
"""In the attempt's directory."""

_FIELDS = (
    "isaaclab", "isaacsim", "kit", "newton", "warp", "mjwarp", "torch", "rsl_rl", "rl_games", "skrl", "sb3",
    "git_commit", "git_branch", "git_dirty", "numpy", "isaaclab_newton", "isaaclab_physx", "isaaclab_ov",
    "isaaclab_tasks", "isaaclab_rl", "ovrtx", "ovphysx", "mujoco", "cuda_bindings", "usd_core", "usd_exchange",
    "isaaclab_release",
)  # fmt: skip
"""Of Versions in schema 1.4: those alone may stand there, for it is read into a class."""


def own_bundle(attempt: Path) -> Record | None:
    """Isaac Lab's own bundle; None where there is none, as after a crash."""
    bundles = (read_json(path) for path in sorted((attempt / DIRECTORY).glob("benchmark_*.json")))
    return next((bundle for bundle in bundles if bundle and bundle.get("schema_version")), None)


def part_of(bundle: Record | None, *keys: str) -> Any:
    """What stands under these keys, one below the other; None where one of them is missing."""
    found: Any = bundle
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def versions(ours: Record, bundle: Record | None) -> tuple[Record, Record]:
    """Versions of the fields that Isaac Lab knows, and all others of ours.

    Of packages Isaac Lab's word counts, for it has imported them; of git ours, for Isaac Lab asks in its own directory.
    """
    theirs = part_of(bundle, "versions") or {}
    said = {name: value for name, value in theirs.items() if value is not None and not name.startswith("git_")}
    known = {**dict.fromkeys(_FIELDS), **ours, **said}
    return {name: known[name] for name in _FIELDS}, {name: ours[name] for name in ours if name not in _FIELDS}


def all_versions(bundle: Record) -> Record:
    """What :func:`versions` has divided; older bundles have it in one place."""
    return bundle["versions"] | bundle["extra"].get("versions", {})


def top_functions(bundle: Record | None, phase: str) -> list[Any]:
    """Where a phase of the start spent its time, by Isaac Lab's profile; empty where it was not profiled."""
    return part_of(bundle, "phases", phase, "top_functions") or []
