"""From a configuration to a run directory that holds all an agent needs."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from launcher.config.compose import Composed
from launcher.config.schema import Config, Vectorization
from launcher.errors import UserError
from launcher.plan.build import Here, build
from launcher.plan.limits import require_possible
from launcher.plan.plan import Plan
from launcher.plan.snapshot import Snapshot
from launcher.records import checkpoints, rundir
from launcher.records.files import Record, read_json, write_atomic, write_json
from launcher.records.rundir import RunDir
from launcher.submission.snapshot import repeat_snapshot, snapshot_for, take_snapshot


def plan_here(config: Config) -> Plan:
    """The plan of a run that would be submitted here and now. Writes nothing.

    Raises:
        UserError: `resume` names nothing to go on from, or a word or a path is none that Linux and Slurm can carry.
    """
    submit_dir = Path.cwd()
    runs_dir, run_id = _new_run(config, submit_dir)
    snapshot = snapshot_for(config, submit_dir, runs_dir, RunDir(runs_dir / run_id).snapshot)
    return _plan(config, Here(run_id, runs_dir, submit_dir, sys.executable, _resume(config, runs_dir), snapshot))


def plan_again(config: Config, original: Plan) -> Plan:
    """The plan of a run like an earlier one, from where that was started, with a copy of its snapshot if it has one.

    Raises:
        UserError: as for :func:`plan_here`.
    """
    submit_dir = Path(original.submit_dir)
    runs_dir, run_id = _new_run(config, submit_dir)
    resume, snapshot = _resume(config, runs_dir), None
    if original.snapshot:
        directory = RunDir(runs_dir / run_id).snapshot
        snapshot = Snapshot(Path(original.repository), directory, runs_dir, copied_from=Path(original.snapshot))
    plan = _plan(config, Here(run_id, runs_dir, submit_dir, sys.executable, resume, snapshot))
    moved = (path.replace(original.snapshot, plan.snapshot, 1) for path in original.import_paths)
    return dataclasses.replace(plan, import_paths=tuple(moved))


def stored_plan(path: Path) -> Plan:
    """The plan that was written for a run, or for the allocation that it shares.

    Raises:
        UserError: it is damaged, or of another version of the launcher.
    """
    try:
        return Plan.from_json(path.read_text())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"'{path}' is no plan that this version can start: {error or type(error).__name__}") from error


def _new_run(config: Config, submit_dir: Path) -> tuple[Path, str]:
    """Where the run will be, and its id."""
    run_id = rundir.new_run_id(config.task.name, config.library.name, datetime.now())
    return submit_dir / os.path.expanduser(config.runs_dir), run_id


def _resume(config: Config, runs_dir: Path) -> str:
    return "" if config.resume is None else str(find_checkpoint(config, runs_dir))


def _plan(config: Config, here: Here) -> Plan:
    plan = build(config, here)
    require_possible(plan)
    return plan


def require_packages(config: Config) -> None:
    """Fail before anything is written where the library is not installed; without importing it.

    Raises:
        UserError: the interpreter of this process, which is the ranks' unless another is named, or an image, lacks a
            package.
    """
    cluster, library, task = config.cluster, config.library, config.task
    if cluster.python or cluster.conda or cluster.venv or cluster.container.runtime:
        return
    if missing := _missing(library.packages):
        extra = f"pip install 'rl-slurm-launcher[{library.name}]'"
        raise UserError(f"library={library.name} needs {', '.join(missing)}: {extra}")
    own = task.vectorization is Vectorization.envpool  # which brings its own simulators
    if not own and (missing := _missing(task.packages)):
        extra = f"pip install 'rl-slurm-launcher[{missing[0]}]'"
        raise UserError(f"task={task.name} needs {', '.join(missing)}: {extra}")


def _missing(packages: Sequence[str]) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


def write_run(
    plan: Plan, composed: Composed, provenance: Record | Path, code: Path | None = None, snapshot_of: Path | None = None
) -> RunDir:
    """Make the run's directory, and write down what was meant and what it was started with. Complete or absent.

    Args:
        plan: what was decided.
        composed: what was asked for.
        provenance: where it comes from, or the file that says so for several runs.
        code: a copy of this package that several runs share.
        snapshot_of: another run's snapshot to copy, instead of the code as it is now. A snapshot that is there
            already, because several runs share it, is left as it is.

    Raises:
        UserError: the directory cannot be written, or the snapshot cannot be taken.
    """
    run = rundir.create(Path(plan.run_dir).parent, plan.run_id, code)
    try:
        if plan.snapshot:
            _fill_snapshot(plan, snapshot_of)
        write_atomic(run.config, composed.yaml)
        if isinstance(provenance, Path):
            run.provenance.symlink_to(os.path.relpath(provenance, run.path))
        else:
            write_json(run.provenance, provenance)
        write_atomic(run.plan, plan.to_json())
    except BaseException:
        shutil.rmtree(run.path)
        raise
    return run


def _fill_snapshot(plan: Plan, snapshot_of: Path | None) -> None:
    target = Path(plan.snapshot)
    if not target.exists() and snapshot_of is None:
        take_snapshot(target, Path(plan.repository), Path(plan.run_dir).parent)
    elif not target.exists() and snapshot_of is not None:
        repeat_snapshot(target, snapshot_of)
    Path(plan.workdir).mkdir(parents=True, exist_ok=True)  # git knows nothing of a directory without files


def find_checkpoint(config: Config, runs_dir: Path) -> Path:
    """The checkpoint that ``resume=`` means: its directory, the newest one of a run, or of all runs like this.

    Raises:
        UserError: there is none, or it is of another library or environment.
    """
    wish = config.resume or ""
    if (Path(wish) / "seal.json").is_file():
        if problem := checkpoints.problem_of(Path(wish)):
            raise UserError(f"resume={wish}: the checkpoint {problem}")
        return _of_the_same(config, Path(wish).absolute())
    runs = _runs_like(config, runs_dir) if wish == "latest" else [rundir.find(runs_dir, wish)]
    for run in reversed(runs):
        if found := checkpoints.newest_whole(run.checkpoints):
            return _of_the_same(config, found.path)
    what = f"{config.task.name} with {config.library.name}" if wish == "latest" else wish
    raise UserError(f"resume={wish}: no run of {what} in '{runs_dir}' has a checkpoint")


def _of_the_same(config: Config, checkpoint: Path) -> Path:
    """Another library's checkpoint would crash every rank, with a message that names no library; another environment's
    as well, or, where the sizes happen to be alike, would be trained on with the other's counters and physics."""
    plan = read_json(checkpoint.parents[1] / "plan.json")
    theirs: Record = plan["training"] if plan else {"library": config.library.name, "task": vars(config.task)}
    trained = f"resume={config.resume}: it was trained with"
    if theirs["library"] != config.library.name:
        wanted = f"library={theirs['library']}"
        raise UserError(f"{trained} {wanted}, not {config.library.name}: {_or(wanted)}")
    name, env = theirs["task"]["name"], theirs["task"].get("env")
    if (env or name) != (config.task.env or config.task.name):
        named, mine = _task(name, env), _task(config.task.name, config.task.env)
        raise UserError(f"{trained} {named}, not {mine}: {_or(f'task={name}')}")
    return checkpoint


def _task(name: str, env: str | None) -> str:
    return f"task={name} ({env})" if env else f"task={name}"


def _or(wanted: str) -> str:
    return f"go on with {wanted}, or leave resume out to start anew"


def _runs_like(config: Config, runs_dir: Path) -> list[RunDir]:
    """Runs of the same task under the same library, the oldest first."""
    return [run for run in rundir.all_runs(runs_dir) if _trains(run) == (config.task.name, config.library.name)]


def _trains(run: RunDir) -> tuple[str, str]:
    training = (read_json(run.plan) or {})["training"]
    return training["task"]["name"], training["library"]
