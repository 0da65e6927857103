"""What a node starts its ranks with."""

import dataclasses
from pathlib import Path

import pytest

from launcher.node.environment import prepare
from launcher.plan.plan import Plan
from launcher.records.rundir import Attempt
from tests.test_container_commands import APPTAINER, plan_of

OURS = ["/runs/the-run/code", "/runs/the-run/code/launcher/train/site"]
"""This package, and what lets the agent look into ranks that hang."""


def python_path(plan: Plan) -> list[str]:
    command, environment = prepare(plan, Attempt(Path("/runs/the-run/attempts/000")), "node1", ["x"], {"SAID": "yes"})
    assert environment["SAID"] == "yes" and command[-1] == "x"
    return environment["PYTHONPATH"].split(":")


@pytest.mark.parametrize("besides", [(), APPTAINER])
def test_ranks_import_the_launcher_and_the_snapshot_before_all_else(
    monkeypatch: pytest.MonkeyPatch, besides: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/host")
    plan = dataclasses.replace(plan_of(*besides), import_paths=("/snapshot/src",))
    ours = [*OURS, "/snapshot/src"]
    assert python_path(plan) == (ours if besides else [*ours, "/of/the/host"])  # the host's own is for its own Python


def test_ranks_that_nobody_watches_are_left_alone() -> None:
    assert not any("site" in place for place in python_path(plan_of("watch.hang_floor=null")))


def test_a_search_path_of_the_plans_goes_into_the_image() -> None:
    plan = plan_of(*APPTAINER, "cluster.env.PYTHONPATH=/opt/packages")
    assert python_path(plan) == [*OURS, "/opt/packages"]
