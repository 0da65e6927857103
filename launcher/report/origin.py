"""Where a run came from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from launcher.records.files import Record
from launcher.report.page import Block, Facts, Section, Text, Words


def provenance_section(found: Record, plan: Record) -> Section:
    """Commit, versions, host and command.

    Args:
        found: what ``provenance.json`` says; empty where there is none.
        plan: that of a run.
    """
    git, python = found.get("git") or {}, found.get("python") or {}
    training = plan.get("training") or {}
    rows = [
        ("command", _line(found.get("command"))),
        ("when", str(found.get("time") or "")),
        ("who and where", " on ".join(filter(None, [found.get("user"), found.get("host")]))),
        ("directory", found.get("directory") or ""),
        ("commit", _commit(git)),
        ("branch", git.get("branch") or ""),
        ("remote", git.get("remote") or ""),
        ("Python", str(python.get("version") or "").split(" ")[0]),
        ("torch", found.get("torch") or ""),
        ("CUDA", found.get("cuda") or ""),
        ("driver", found.get("driver") or ""),
        ("Slurm", found.get("slurm") or ""),
        ("launcher", found.get("launcher") or ""),
        ("library", training.get("library") or ""),
        ("seed", training.get("seed")),
    ]
    packages = "\n".join(f"{name} {version}" for name, version in (found.get("packages") or {}).items())
    blocks: list[Block] = (
        [Facts([(label, str(value)) for label, value in rows if value not in (None, "")])] if found else []
    )
    blocks += [Text("Packages", packages)] if packages else []
    return Section("Provenance", blocks or [Words("There is no provenance.json.")])


def _line(command: Any) -> str:
    return shlex.join(map(str, command)) if isinstance(command, list) else ""


def _commit(git: Mapping[str, Any]) -> str:
    if not git.get("commit"):
        return ""
    return git["commit"] + (", with changes that were not committed" if git.get("dirty") else "")
