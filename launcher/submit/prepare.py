"""From a configuration to a run directory that holds all an agent needs."""

from __future__ import annotations

import importlib.util
import sys
from datetime import datetime
from pathlib import Path

from launcher.config.compose import Composed
from launcher.config.schema import Config
from launcher.errors import UserError
from launcher.plan.build import Here, build
from launcher.plan.plan import Plan
from launcher.records import checkpoints, rundir
from launcher.records.files import read_json, write_atomic
from launcher.records.rundir import RunDir


def plan_here(config: Config) -> Plan:
    """The plan of a run that would be submitted here and now. Writes nothing.

    Raises:
        UserError: `resume` names nothing to go on from.
    """
    runs_dir = Path(config.runs_dir).expanduser().absolute()
    run_id = rundir.new_run_id(config.task.name, config.library.name, datetime.now())
    resume = "" if config.resume is None else str(find_checkpoint(config, runs_dir))
    return build(config, Here(run_id, runs_dir, Path.cwd(), sys.executable, resume))


def require_packages(config: Config) -> None:
    """Fail before anything is written where the library is not installed; without importing it.

    Raises:
        UserError: the interpreter of this process, which is the ranks' unless another is named, or an image, lacks a
            package.
    """
    missing = [name for name in config.library.packages if importlib.util.find_spec(name) is None]
    cluster = config.cluster
    elsewhere = cluster.python or cluster.conda or cluster.venv or cluster.container.runtime
    if missing and elsewhere is None:
        name = config.library.name
        raise UserError(f"library={name} needs {', '.join(missing)}: pip install 'rl-slurm-launcher[{name}]'")


def write_run(plan: Plan, composed: Composed, code: Path | None = None) -> RunDir:
    """Make the run's directory and write down what was meant; `code` is the nodes' launcher, if others share it.

    Raises:
        UserError: the directory cannot be written.
    """
    run = rundir.create(Path(plan.run_dir).parent, plan.run_id, code)
    write_atomic(run.config, composed.yaml)
    write_atomic(run.plan, plan.to_json())
    return run


def find_checkpoint(config: Config, runs_dir: Path) -> Path:
    """The checkpoint that ``resume=`` means: its directory, the newest one of a run, or of all runs like this.

    Raises:
        UserError: there is none.
    """
    wish = config.resume or ""
    if checkpoints.read(Path(wish)):
        return Path(wish).absolute()
    runs = _runs_like(config, runs_dir) if wish == "latest" else [rundir.find(runs_dir, wish)]
    for run in reversed(runs):
        if found := checkpoints.newest_whole(run.checkpoints):
            return found.path
    what = f"{config.task.name} with {config.library.name}" if wish == "latest" else wish
    raise UserError(f"resume={wish}: no run of {what} in '{runs_dir}' has a checkpoint")


def _runs_like(config: Config, runs_dir: Path) -> list[RunDir]:
    """Runs of the same task under the same library, the oldest first."""
    return [run for run in rundir.all_runs(runs_dir) if _trains(run) == (config.task.name, config.library.name)]


def _trains(run: RunDir) -> tuple[str, str]:
    training = (read_json(run.plan) or {})["training"]
    return training["task"]["name"], training["library"]
