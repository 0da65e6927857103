"""``bench overhead``: what the launcher itself costs on a machine or cluster, against torchrun by hand."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.cli.arguments import Arguments
from launcher.cli.start import EXIT_CODES, composed_of, start_plan
from launcher.cli.table import table
from launcher.config.compose import Composed
from launcher.config.literals import quote
from launcher.config.schema import Config, Scheduler
from launcher.errors import LauncherError, UserError
from launcher.plan.plan import Plan
from launcher.records.files import Record, read_json, write_atomic, write_json
from launcher.records.result import STOPPED
from launcher.records.rundir import RunDir, launchers_own
from launcher.records.submission import submitted
from launcher.slurm import commands
from launcher.slurm.waited import run_script
from launcher.submission.plain import plain_here, plain_job
from launcher.submission.prepare import plan_here
from launcher.submission.slurm import require_slurm

_SCRIPT = Path(__file__).resolve().parents[1] / "train" / "first_sum.py"
_MARK = "OVERHEAD_OF"
"""The variable by which the processes of a job are found, to add up their memory."""
_BY_HAND, _HERE = "by_hand", "here"


def overhead(arguments: Arguments) -> int:
    """Start jobs of either kind in turns, and compare them."""
    arguments.overrides = [*arguments.overrides, "task=script", "library=torchrun", f"task.path={quote(str(_SCRIPT))}",
                           "snapshot=off", "wait=true"]  # fmt: skip
    composed = composed_of(arguments)
    _require(composed.config)
    plan = plan_here(composed.config)
    directory = _directory(Path(plan.run_dir).parent)
    print(f"overhead on {composed.config.cluster.name}: {directory}", file=sys.stderr)
    pairs = [_pair(arguments, directory / str(number)) for number in range(composed.config.bench.repetitions + 1)]
    found = _summed_up(composed.config, plan, pairs[1:])  # the first one fills the caches of disks
    write_json(directory / "overhead.json", found)
    if arguments.output is not None:
        try:
            write_json(Path(arguments.output), found)
        except OSError as error:
            raise UserError(f"cannot write '{arguments.output}': {error.strerror}") from error
    print(json.dumps(found, indent=2) if arguments.json else describe_overhead(found))
    return 0


def _require(config: Config) -> None:
    cluster = config.cluster
    if config.dry_run:
        raise UserError("bench overhead starts jobs: dry_run=true has nothing to show")
    if cluster.scheduler is Scheduler.none:
        raise UserError("bench overhead starts its jobs itself: it needs Slurm, or this machine")
    if cluster.container.runtime is not None:
        raise UserError("bench overhead compares jobs without containers: cluster.container.runtime=null")
    if cluster.elastic or cluster.spare_nodes:
        raise UserError("bench overhead needs a fixed number of nodes: no range in cluster.nodes, no spare ones")
    if cluster.scheduler is Scheduler.slurm:
        require_slurm()


def _directory(runs_dir: Path) -> Path:
    """Not among the runs: neither kind of job is one to look after."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        name = f"overhead-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        directory = launchers_own(runs_dir, make=True) / name
        directory.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"cannot write runs_dir '{runs_dir}': {error.strerror}") from error
    return directory


def _pair(arguments: Arguments, directory: Path) -> dict[str, Record]:
    """One job of either kind, one after the other, so that a slow moment meets both."""
    found: dict[str, Record] = {}
    _say(f"  pair {directory.name}:")
    try:
        for kind, start in ((_BY_HAND, _by_hand), (_HERE, _here)):
            _say(f" {kind.replace('_', ' ')}")
            found[kind] = _job(arguments, directory / kind, start)
            _say(f" {found[kind]['first_sum_s']:.2f} s")
        _say(" (does not count)" if directory.name == "0" else "")
    finally:
        _say("\n")
    return found


def _say(piece: str) -> None:
    print(piece, end="", file=sys.stderr, flush=True)


def _job(arguments: Arguments, folder: Path, start: Callable[[Plan, Composed, Path], None]) -> Record:
    folder.mkdir(parents=True)
    words = [f"task.args=[{quote(str(folder))},{_MARK}]", f"runs_dir={quote(str(folder / 'runs'))}"]
    composed = composed_of(replace(arguments, overrides=[*arguments.overrides, *words]))
    plan = plan_here(composed.config)
    mark = (f"export {_MARK}={shlex.quote(str(folder))}", f"date +%s.%N >{shlex.quote(str(folder / 'began'))}")
    write_atomic(folder / "began", str(time.time()))  # the script of a job writes it again
    start(replace(plan, setup=(*mark, *plan.setup)), composed, folder)
    return _measured(folder, plan)


def _by_hand(plan: Plan, _: Composed, folder: Path) -> None:
    entry = [str(_SCRIPT), str(folder), _MARK]
    if plan.scheduler == "slurm":
        (folder / "job.sbatch").write_text(plain_job(plan, entry, folder))
        run_script(folder / "job.sbatch")
        return
    command, environment = plain_here(plan, entry, folder)
    with open(folder / "by_hand.out", "wb") as output:
        subprocess.run(command, env={**environment, _MARK: str(folder)}, stdout=output, stderr=output, check=False)


def _here(plan: Plan, composed: Composed, folder: Path) -> None:
    run = RunDir(Path(plan.run_dir))
    with open(folder / "here.out", "w") as output, contextlib.redirect_stdout(output), _marked(folder):
        try:
            code = start_plan(plan, composed)
        except KeyboardInterrupt:
            if job_id := submitted(run).get("job_id"):
                commands.cancel(str(job_id))
            raise
    if code == EXIT_CODES[STOPPED]:  # here Ctrl-C reaches the run, which has saved by now
        raise KeyboardInterrupt
    if code:
        raise LauncherError(f"the run ended with code {code}: python -m launcher why {shlex.quote(str(run.path))}")


@contextlib.contextmanager
def _marked(folder: Path) -> Generator[None]:
    os.environ[_MARK] = str(folder)
    try:
        yield
    finally:
        del os.environ[_MARK]


def _measured(folder: Path, plan: Plan) -> Record:
    """Seconds from the job's start to the last rank's sum, and of its nodes the mean MiB."""
    ranks = [read_json(folder / f"rank-{rank}.json") or {} for rank in range(plan.resources.world_size)]
    if not all(ranks):
        raise LauncherError(f"not all ranks have summed up: see the output in {folder}")
    memory = [rank["memory_mib"] for rank in ranks if rank["memory_mib"] is not None]
    began = float((folder / "began").read_text())
    return {
        "first_sum_s": max(rank["done"] for rank in ranks) - began,
        "memory_mib": statistics.mean(memory),
        "device": ranks[0]["device"],
    }


def _summed_up(config: Config, plan: Plan, pairs: Sequence[dict[str, Record]]) -> Record:
    """The pairs, and of each measure the median of their ratios."""
    ratio = {
        name: statistics.median(pair[_HERE][name] / pair[_BY_HAND][name] for pair in pairs)
        for name in ("first_sum_s", "memory_mib")
    }
    return {
        "cluster": config.cluster.name, "scheduler": plan.scheduler, "nodes": plan.resources.nodes,
        "nproc_per_node": plan.resources.nproc_per_node, "device": pairs[0][_HERE]["device"],
        "start_method": plan.start.method, "pairs": list(pairs), "ratio": ratio,
    }  # fmt: skip


def describe_overhead(found: Record) -> str:
    """What was compared, and a table of it."""
    by_hand = "srun torchrun" if found["scheduler"] == "slurm" else "torchrun"
    ranks, nodes = found["nodes"] * found["nproc_per_node"], found["nodes"]
    where = f"{ranks} rank{'s' * (ranks != 1)} on {nodes} node{'s' * (nodes != 1)}"
    head = f"{by_hand} by hand, and here (start={found['start_method']}): {where}, {found['device']}; medians"
    rows = [_row("job to first all-reduce", found, "first_sum_s", "{:.2f} s"),
            _row("memory of a node", found, "memory_mib", "{:.0f} MiB")]  # fmt: skip
    return f"{head}\n{table(('', 'BY HAND', '', 'HERE', '', 'RATIO'), rows)}"


def _row(label: str, found: Record, name: str, form: str) -> list[str]:
    cells: list[Any] = [label]
    for kind in (_BY_HAND, _HERE):
        values = [pair[kind][name] for pair in found["pairs"]]
        spread = f"({form.format(min(values))} - {form.format(max(values))})"
        cells += [form.format(statistics.median(values)), spread]
    return [*cells, f"{found['ratio'][name]:.2f}"]
