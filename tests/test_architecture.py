"""The rooms of the launcher, and who may know whom (docs/design.md)."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.records import rundir
from tests.conftest import ROOT

PLAN_DATA = {"plan.plan", "plan.command", "plan.container"}
MAY_IMPORT = {
    "config": {"slurm.hostlist"},
    "slurm": set[str](),
    "records": {"slurm"},
    "plan": {"config"},
    "node": {"records", "slurm", *PLAN_DATA},
    "submission": {"plan", "records", "slurm", "config"},
    "train": {"records"},
    "diagnose": {"config", "plan", "submission", "records", "slurm"},
    "report": {"records", "slurm", "submission.secrets"},
    "cli": {"config", "plan", "submission", "records", "slurm", "diagnose", "report"},
}
ANYONE = {"errors", ""}  # the package itself: its version


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "launcher").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "launcher").with_suffix("").parts)
        yield name.removesuffix(".__init__"), path


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return (*plain, *(f"{node.module}.{alias.name}" for node in froms for alias in node.names))


def ours(path: Path) -> Iterator[str]:
    return (name.removeprefix("launcher").lstrip(".") for name in imports(path) if name.split(".")[0] == "launcher")


@pytest.mark.parametrize(("name", "path"), [(n, p) for n, p in modules() if "." in n])
def test_a_room_knows_only_the_rooms_it_may_know(name: str, path: Path) -> None:
    room = name.split(".", maxsplit=1)[0]
    for imported in ours(path):
        target = imported.split(".")[0]
        allowed = target in ANYONE | {room} | MAY_IMPORT[room]
        in_part = any(imported.startswith(part) for part in MAY_IMPORT[room] if "." in part)
        assert allowed or in_part, f"launcher.{name} imports launcher.{imported}"


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_only_the_training_knows_torch(name: str, path: Path) -> None:
    if not name.startswith("train"):
        assert not {imported.split(".")[0] for imported in imports(path)} & {"torch", "rsl_rl", "gymnasium", "numpy"}


IN_A_CHILD = {"node.nvml": {"pynvml"}}  # a program of its own, which says so where the package is missing


@pytest.mark.parametrize(("name", "path"), [(n, p) for n, p in modules() if n.startswith(("node", "records", "slurm"))])
def test_what_runs_on_every_node_needs_the_standard_library_only(name: str, path: Path) -> None:
    import sys

    outside = {imported.split(".")[0] for imported in imports(path)} - set(sys.stdlib_module_names) - {"launcher"}
    outside -= IN_A_CHILD.get(name, set())
    assert not outside


def test_the_plans_data_needs_the_standard_library_only() -> None:
    import sys

    for part in PLAN_DATA:
        path = ROOT / "launcher" / f"{part.replace('.', '/')}.py"
        roots = {imported.split(".")[0] for imported in imports(path)}
        assert roots <= set(sys.stdlib_module_names) | {"launcher"}
        assert all(imported.startswith("plan.plan.") for imported in ours(path))


def test_what_runs_in_a_job_finds_all_that_it_imports_in_the_runs_own_copy(tmp_path: Path) -> None:
    rundir.copy_package(tmp_path)
    for name, path in modules():
        if name.split(".")[0] in {"node", "train", "records", "slurm"} or name in PLAN_DATA:
            assert (tmp_path / "launcher" / path.relative_to(ROOT / "launcher")).is_file()
            for room in {imported.split(".")[0] for imported in ours(path)} - ANYONE:
                assert (tmp_path / "launcher" / room).is_dir(), f"launcher.{name} needs launcher.{room}"
