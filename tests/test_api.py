"""Runs from Python: ``from launcher import submit, submit_sweep, wait, load_run, status, cancel``."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import launcher
from launcher import api
from launcher.config.compose import compose
from launcher.errors import SchedulerError, UserError
from tests.conftest import ROOT, environment, only_run, script
from tests.sandbox import Sandbox
from tests.test_slurm import in_cluster

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.lists(st.lists(PLAIN) | PLAIN, min_size=5, max_size=15))
@settings(max_examples=6)  # each composes
def test_any_value_arrives_as_it_is(values: list[Any]) -> None:
    own = {f"own{number}": value for number, value in enumerate(values)}
    words = api._overrides({"agent": {"algorithm": own}})
    algorithm = compose([f"+{word}" for word in words]).config.agent["algorithm"]
    assert {name: algorithm[name] for name in own} == own


def test_what_cannot_be_written_in_a_configuration_is_a_mistake(workdir: Path) -> None:
    with pytest.raises(UserError, match="is no value of a configuration"):
        launcher.submit({"agent.policy": object()})


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["taks=cartpole"], "did you mean task"),
        ([{"cluster": {"node": 2}}], "did you mean"),
        (["dry_run=true"], "starts nothing"),
        ([{"cluster.scheduler": "none", "cluster.hosts": ["a", "b"]}], "launcher commands"),
        ([{"task": "script", "library": "torchrun", "task.path": "nix.py"}], "no file 'nix.py'"),
    ],
)
def test_a_mistake_is_an_exception_and_leaves_nothing(workdir: Path, words: list[Any], answer: str) -> None:
    with pytest.raises(UserError, match=answer):
        launcher.submit(*words)
    assert not list(workdir.iterdir())


@pytest.mark.parametrize(
    ("words", "runs", "answer"),
    [
        (["task=cartpole"], [], "without runs"),
        (["task=cartpole"], [{"seed": 1}, ["seed=2", {"taks": 3}]], "did you mean task"),
        (["seed=1,2", "dry_run=true"], None, "starts nothing"),
        (["hydra/sweeper=optuna"], None, "-m"),
        ([], ["cluster=local", "cluster=a100x2"], "either here or on Slurm"),
    ],
)
def test_a_mistake_in_any_run_of_a_sweep_leaves_nothing(workdir: Path, words: Any, runs: Any, answer: str) -> None:
    with pytest.raises(UserError, match=answer):
        launcher.submit_sweep(*words, runs=runs)
    assert not list(workdir.iterdir())


def test_without_slurm_nothing_is_left(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SchedulerError, match="cluster=local"):
        launcher.submit("cluster=a100x2")
    assert not list(workdir.iterdir())


@pytest.mark.parametrize("name", ["submit", "submit_sweep", "wait", "status", "cancel", "load_run", "load_sweep"])
def test_what_programs_use_is_a_function_that_explains_itself(name: str) -> None:
    function = getattr(launcher, name)
    assert inspect.isfunction(function) and name in dir(launcher)
    assert function.__name__ == name and function.__doc__  # of which help() makes its page


def test_submitting_from_python_needs_no_torch() -> None:
    code = "import sys\nfrom launcher import submit\n"
    code += "try: submit('taks=1')\nexcept Exception as error: print(error)\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert "did you mean task" in done.stdout, done.stderr


NOTEBOOK = """\
import json, sys
from launcher import cancel, load_run, status, submit, wait
run = submit("task=script", "library=torchrun", {"task.path": "train it.py", "task.args": ["$HOME 'x'"]}, *sys.argv[1:])
before = status(run).state
try:
    wait(run, timeout=0)
    raise SystemExit("it cannot be over")
except TimeoutError as error:
    said = str(error)
after = status(run).state
(run.records.path / "go").touch()
ended = wait(run)
rows = [(row["iteration"], row["loss"]) for row in ended.metrics.rows()]
try:
    cancel(ended)
except Exception as error:
    refused = str(error)
print(json.dumps([before, said, after, ended.result.outcome, rows, load_run(run.run_id).run_id, refused]))
"""
TRAINING = """\
import os, sys, time
from launcher.train import Rank
assert sys.argv[1:] == ["$HOME 'x'"], sys.argv
with Rank("cpu") as rank:
    while not os.path.exists(os.path.join(os.environ["LAUNCHER_RUN_DIR"], "go")):
        time.sleep(0.02)
    for iteration in range(1, 4):
        rank.progress(iteration, loss=1 / iteration)
"""


def assert_all_of_it(output: str, run: Path) -> None:
    before, said, after, outcome, rows, run_id, refused = json.loads(output.splitlines()[-1])
    assert (before, after) in (("pending", "pending"), ("pending", "running"), ("running", "running"))
    assert said in (f"{run.name} is {before}", f"{run.name} is {after}")  # it may start at any moment
    assert (outcome, rows) == ("completed", [[1, 1.0], [2, 1 / 2], [3, 1 / 3]])
    assert run_id == run.name
    assert "is not running" in refused
    assert output.count("\n") == 1  # nothing else was printed


@pytest.mark.train
def test_a_run_here_is_submitted_waited_for_and_read(workdir: Path) -> None:
    script(workdir, TRAINING)
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], cwd=workdir, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_all_of_it(done.stdout, only_run(workdir))


@pytest.mark.slurm
@pytest.mark.train
def test_a_job_is_submitted_waited_for_and_read(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, TRAINING)
    command = [sys.executable, "-c", NOTEBOOK, "cluster=sandbox", "cluster.nproc_per_node=1"]
    done = sandbox.run(command, cwd=workdir, env=in_cluster(sandbox), timeout=200)
    assert done.returncode == 0, done.stderr
    assert_all_of_it(done.stdout, only_run(workdir))


EXAMPLE = re.compile(r"### From Python\n\n.*\n\n((?:    .*\n|\n)+)")


@pytest.mark.train
def test_the_example_of_a_sweep_in_the_documentation_runs(workdir: Path) -> None:
    found = EXAMPLE.search((ROOT / "docs/sweeps.md").read_text())
    assert found is not None
    small = '"cluster=local", {"num_envs": 8, "max_iterations": 2}'
    code = textwrap.dedent(found[1]).replace('"cluster=a100x2"', small)
    assert small in code
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=workdir, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines[:-1]] == [["0.001", "completed"], ["0.01", "completed"]]
    assert re.fullmatch(r"best: \d{8}-\d{6}-sweep-....-000[01]", " ".join(lines[-1]))


SWEEP = """\
import json, time
from launcher import cancel, load_run, load_sweep, status, submit_sweep, wait
common = ["task=script", "library=torchrun", {"task.path": "train it.py"}, "cluster=sandbox", "cluster.gpus_per_node=1"]
sweep = submit_sweep(*common, "sweep.metric=loss", runs=[{"task.args": ["ends"]}, {"task.args": ["stays"]}])
before = [one.state for one in status(sweep)]
(sweep[0].records.path / "go").touch()
wait(sweep[0])
while not list(load_run(sweep[1].records.path).metrics.rows()):
    time.sleep(0.1)
try:
    wait(sweep, timeout=1)
    said = "it cannot be over"
except TimeoutError as error:
    said = str(error)
cancel(sweep)
rows = [[row["task.args"], row["outcome"], row["loss"]] for row in wait(sweep).table.rows()]
jobs = {one.where.partition("_")[0] for one in status(load_sweep(sweep.sweep_id))}
print(json.dumps([before, said, rows, len(jobs)]))
"""
ENDS_OR_STAYS = """\
import os, sys, time
with open(os.environ["LAUNCHER_PROGRESS"], "a") as file:
    file.write('{"iteration": 1, "loss": 0.5}\\n')
until = {"ends": os.path.join(os.environ["LAUNCHER_RUN_DIR"], "go"), "stays": os.environ["LAUNCHER_STOP_FILE"]}
while not os.path.exists(until[sys.argv[1]]):
    time.sleep(0.1)
"""


@pytest.mark.slurm
@pytest.mark.train
def test_a_sweep_is_one_array_that_is_waited_for_cancelled_and_read(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, ENDS_OR_STAYS)
    done = sandbox.run([sys.executable, "-c", SWEEP], cwd=workdir, env=in_cluster(sandbox), timeout=200)
    assert done.returncode == 0, done.stderr
    before, said, rows, jobs = json.loads(done.stdout)
    assert set(before) <= {"pending", "running"}
    assert re.search(r" is not over(: 1 of 2 runs go on)?$", said)
    assert rows == [["['ends']", "completed", 0.5], ["['stays']", "stopped", 0.5]]
    assert jobs == 1
