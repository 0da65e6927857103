"""The directory of a run: what stands where, how it is made, how a run is found by what a person types."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from launcher.errors import UserError
from launcher.records.files import read_json


@dataclass(frozen=True)
class Attempt:
    """One start of a run: its own directory, so that no attempt overwrites what another one left."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def run(self) -> RunDir:
        return RunDir(self.path.parents[1])

    @property
    def rendezvous(self) -> Path:
        """Who takes part: job, hosts, master, time of the start."""
        return self.path / "rendezvous.json"

    @property
    def events(self) -> Path:
        """What the agents did and saw, from node 0."""
        return self.path / "events.jsonl"

    @property
    def training(self) -> Path:
        """What rank 0 last said of the training: iteration, metrics, whether the ranks agree."""
        return self.path / "training.json"

    @property
    def timings(self) -> Path:
        """Of a benchmark: what every rank has measured of itself, from rank 0."""
        return self.path / "timings.json"

    @property
    def stop_file(self) -> Path:
        """Exists when the ranks are asked to stop."""
        return self.path / "stop"

    @property
    def verdict(self) -> Path:
        """How the attempt ended and what followed; absent while it goes on, and when its node 0 was cut off."""
        return self.path / "verdict.json"

    @property
    def superseded(self) -> bool:
        """True when another attempt has begun: this one must not write any more."""
        return self.path.with_name(f"{self.number + 1:03}").exists()

    def rank_log(self, rank: int) -> Path:
        """All that a rank printed, both streams in order; by global rank."""
        return self.path / f"rank-{rank}.log"

    def node_log(self, node: int) -> Path:
        """All that torchrun printed on a node."""
        return self.path / f"node-{node}.log"

    def rank_stacks(self, rank: int) -> Path:
        """The Python stacks of all threads of a rank, from each time that it was suspected to hang."""
        return self.path / f"stacks-{rank}.txt"

    @property
    def nccl_ras(self) -> Path:
        """What NCCL said of itself, from each time that the run was suspected to hang."""
        return self.path / "nccl-ras.txt"

    def samples(self, node: int) -> Path:
        """How busy a node was: a line every few seconds."""
        return self.path / f"samples-{node}.jsonl"

    def outcome(self, node: int) -> Path:
        """How torchrun ended on a node, with every failed rank."""
        return self.path / f"node-{node}.json"


@dataclass(frozen=True)
class RunDir:
    """``runs/<run id>/``: one for all ranks and all attempts of a run."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def allocation(self) -> Path:
        """The plan of the allocation that this run shares with others of its sweep; absent where it has its own."""
        return self.path / "allocation.json"

    @property
    def provenance(self) -> Path:
        """What the run was started with: commit, versions, host, user, command line."""
        return self.path / "provenance.json"

    @property
    def snapshot(self) -> Path:
        """The copy of the user's code that the ranks run from."""
        return self.path / "snapshot"

    @property
    def submission(self) -> Path:
        """How the run was started: the job id, or the process on this machine."""
        return self.path / "submission.json"

    @property
    def cancel(self) -> Path:
        """What a person wants who has cancelled the run, ``save`` or ``now``: Slurm's signal is for a whole job, and
        says neither. Absent otherwise, and when the run has ended."""
        return self.path / "cancel"

    @property
    def cancelled(self) -> str:
        """The word in :attr:`cancel`, or an empty one."""
        try:
            return self.cancel.read_text()
        except OSError:
            return ""

    @property
    def secret(self) -> Path:
        """What the node agents of this run know each other by."""
        return self.path / "secret"

    @property
    def code(self) -> Path:
        """The one directory that is put on the nodes' PYTHONPATH; holds this package."""
        return self.path / "code"

    @property
    def commands(self) -> Path:
        """The script that a person starts on every host, of a run without a scheduler."""
        return self.path / "node.sh"

    @property
    def slurm(self) -> Path:
        """submitit's files, and what the agents printed."""
        return self.path / "slurm"

    @property
    def agent_log(self) -> Path:
        """What the agent of a local run printed."""
        return self.path / "agent.log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """The verdict; exists once the run has ended."""
        return self.path / "result.json"

    @property
    def benchmark(self) -> Path:
        """Of a benchmark: its result bundle (docs/benchmarks.md); exists once the run has ended."""
        return self.path / "benchmark.json"

    @property
    def runs_dir(self) -> Path:
        """Where the runs are, those of a sweep among them."""
        parent = self.path.parent
        return parent.parent if os.path.exists(parent / "sweep.json") else parent

    def attempts(self) -> list[Attempt]:
        """All attempts, the oldest first."""
        directories = (path for path in (self.path / "attempts").glob("[0-9]*") if path.name.isdigit())
        return sorted(map(Attempt, directories), key=lambda attempt: attempt.number)

    def claim_attempt(self) -> Attempt:
        """Make the directory of the next attempt; two claimants never get the same one."""
        while True:
            number = max((attempt.number for attempt in self.attempts()), default=-1) + 1
            path = self.path / "attempts" / f"{number:03}"
            try:
                path.mkdir(parents=True)
                return Attempt(path)
            except FileExistsError:
                continue


def new_run_id(task: str, library: str, now: datetime) -> str:
    """``20261129-181502-cartpole-rsl_rl-3fa9``: sorts by time, is told apart from others of the same second."""
    return f"{now:%Y%m%d-%H%M%S}-{_as_part(task)}-{_as_part(library)}-{secrets.token_hex(2)}"


def _as_part(name: str) -> str:
    """A name as part of a directory's, which every shell and file system takes as it is."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:_LONGEST_PART]


_LONGEST_PART = 60


def create(runs_dir: Path, run_id: str, code: Path | None = None) -> RunDir:
    """Make the directory of a new run, readable by its owner only, with its secret and this package in it.

    `code` is the package's copy that several runs share (:func:`copy_package`); a run without it gets its own.

    Raises:
        UserError: `runs_dir` cannot be written.
    """
    run = RunDir(runs_dir / run_id)
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        run.path.mkdir(mode=0o700)
        _fill(run, code)
    except OSError as error:
        raise UserError(
            f"cannot write runs_dir '{runs_dir}': {error.strerror or error}; choose another with runs_dir=DIR"
        ) from error
    return run


def copy_package(code: Path) -> None:
    """Copy what a job needs of this package, so that one in the queue does not meet another version of it."""
    shutil.copytree(Path(__file__).resolve().parents[1], code / "launcher", ignore=_NOT_NEEDED)


_NOT_NEEDED = shutil.ignore_patterns(
    "__pycache__", "conf", "slurm_templates", "api.py", "cli", "config", "diagnose", "report", "submission"
)
"""Creating a file is what a copy costs; only ``node``, ``train`` and what these import run in a job."""


def _fill(run: RunDir, code: Path | None) -> None:
    for directory in (run.checkpoints, run.slurm):
        directory.mkdir()
    if code is None:
        copy_package(run.code)
    else:
        run.code.symlink_to(os.path.relpath(code, run.path), target_is_directory=True)
    with open(os.open(run.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def launchers_own(runs_dir: Path, make: bool = False) -> Path:
    """Where what is the launcher's own stands beside the runs, for its owner's eyes only; made if that is wished."""
    path = runs_dir / ".launcher"
    if make:
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def require_readable(runs_dir: Path, name: str = ".") -> None:
    """Fail where what is named there is somebody else's, who lets nobody read it; what is not there is no failure.

    Raises:
        UserError: it may not be read, or `runs_dir` is a file.
    """
    try:
        os.listdir(runs_dir)
        os.listdir(runs_dir / name)
    except PermissionError as error:
        raise UserError(f"'{error.filename}' cannot be read: {error.strerror}") from error
    except (OSError, ValueError):
        if os.path.isfile(runs_dir):
            raise UserError(f"runs_dir '{runs_dir}' is a file: name the directory with runs_dir=DIR") from None


def all_runs(runs_dir: Path) -> list[RunDir]:
    """The runs of a directory, the oldest first."""
    return [RunDir(path.parent) for path in sorted(runs_dir.glob("*/plan.json"))]


def find(runs_dir: Path, text: str) -> RunDir:
    """The run that a person means by its id, a unique beginning of it, its directory, or its job's id.

    Raises:
        UserError: there is none, or more than one.
    """
    if os.path.isfile(Path(text) / "plan.json"):
        return RunDir(Path(text).resolve())
    require_readable(runs_dir, text)
    matches = list(_matches(all_runs(runs_dir), text)) or list(_matches(_runs_of_sweeps(runs_dir), text))
    if len(matches) == 1:
        return matches[0]
    if os.path.isfile(runs_dir / text / "sweep.json"):
        raise UserError(f"'{text}' is a sweep: name one of its runs, such as {text}-0000")
    if matches:
        some = ", ".join(run.run_id for run in matches[:8])
        raise UserError(f"'{text}' could be {some}{' …' if len(matches) > 8 else ''}: write more of the run's id")
    raise UserError(f"there is no run '{text}' in '{runs_dir}'; `python -m launcher status` lists them")


def _runs_of_sweeps(runs_dir: Path) -> list[RunDir]:
    return [RunDir(path.parent) for path in sorted(runs_dir.glob("*/*/plan.json"))]


def _matches(runs: list[RunDir], text: str) -> Iterator[RunDir]:
    exact = [run for run in runs if text and text in (run.run_id, _job_id(run))]
    yield from exact or (run for run in runs if text and run.run_id.startswith(text))


def _job_id(run: RunDir) -> str:
    return str((read_json(run.submission) or {}).get("job_id") or "")
