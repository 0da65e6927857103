"""``bench scaling``: the same training on more and more ranks, as a table and a picture."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.arguments import Arguments
from launcher.cli.bench_runs import aside, benchmark_overrides, bundle_if_ended
from launcher.cli.start import as_typed, composed_of
from launcher.cli.sweep import Sweeping, exit_code, start_and_follow
from launcher.cli.table import table
from launcher.config.bench import scaling_runs
from launcher.config.schema import Config
from launcher.errors import UserError
from launcher.records.files import Record, write_json
from launcher.records.result import read_result
from launcher.records.rundir import RunDir
from launcher.records.scaling import FILE, asked_of, summed_up, title_of
from launcher.records.sweepdir import SweepDir
from launcher.report.scaling_chart import draw
from launcher.submission.arrays import Member
from launcher.submission.sweep import require

_ONE_AT_A_TIME = "sweep.parallel=1"
"""Runs beside each other would measure each other."""


def scaling(arguments: Arguments) -> int:
    """Start the runs as a sweep, and say what came of them; returns 0 where all have ended well."""
    words = benchmark_overrides("training", [_ONE_AT_A_TIME, *arguments.overrides])
    arguments.overrides = words
    config = composed_of(arguments).config
    jobs = [[*words, *more] for more in scaling_runs(config)]
    followed: list[RunDir] = []

    def start(sweep: SweepDir, members: Sequence[Member], wait: bool) -> int:
        write_json(sweep.path / FILE, {"asked": _asked(config, len(members))})
        if start_and_follow(sweep, members, wait):
            followed.extend(RunDir(Path(member.plan.run_dir)) for member in members)
        else:
            print(f"  result  python -m launcher bench show {as_typed(sweep.path)}")
        return 0

    sweeping = Sweeping(arguments, require, start)
    with aside(arguments.json):
        sweeping.launch(jobs, 0)
    if followed and (found := found_in(sweeping.directory)):
        show_scaling(sweeping.directory, found, arguments.json, arguments.output)
    return exit_code(read_result(run.result) for run in followed)


def _asked(config: Config, runs: int) -> Record:
    bench = config.bench
    return {
        "task": config.task.name,
        "library": config.library.name,
        "cluster": config.cluster.name,
        "num_envs": config.num_envs or config.task.num_envs,
        "world_sizes": list(bench.world_sizes),
        "scaling": [kind.value for kind in bench.scaling],
        "repetitions": bench.repetitions,
        "runs": runs,
    }


def found_in(sweep: SweepDir) -> Record | None:
    """What a benchmark of scaling has shown until now; None of another sweep."""
    if (asked := asked_of(sweep)) is None:
        return None
    bundles = (bundle_if_ended(RunDir(path)) for path in sweep.run_paths())
    return {"sweep_id": sweep.sweep_id, **summed_up(asked, [one for one in bundles if one is not None])}


def show_scaling(sweep: SweepDir, found: Record, as_json: bool, output: str | None) -> None:
    """Write down what was found with its picture, and print it.

    Raises:
        UserError: nothing has ended yet, or `output` is no directory that can be written.
    """
    if not found["ended"]:
        raise UserError(f"no run of '{sweep.sweep_id}' has ended: python -m launcher status {as_typed(sweep.path)}")
    write_json(sweep.path / FILE, found)
    files = [sweep.path / FILE, *_drawn(found, sweep.path)]
    if output is not None:
        files = _copied(files, Path(os.path.expanduser(output)))
    print(json.dumps(found, indent=2) if as_json else describe_scaling(found))
    with aside(as_json):
        print(f"  {', '.join(file.name for file in files)} in {files[0].parent}")


def _drawn(found: Record, directory: Path) -> list[Path]:
    try:
        return draw(found, directory)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        print("launcher: no picture without matplotlib: pip install 'rl-slurm-launcher[bench]'", file=sys.stderr)
        return []


def _copied(files: Sequence[Path], directory: Path) -> list[Path]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(file, directory)) for file in files]
    except OSError as error:
        raise UserError(f"-o {directory}: {error.strerror}") from error


_PARTS = ("stepping", "learning", "synchronising", "other")


def describe_scaling(found: Record) -> str:
    """A table with a row for each number of ranks, and what there is to say of it."""
    asked = found["asked"]
    head = f"{title_of(asked)}: {found['ended']} of {asked['runs']} runs have ended"
    columns = ("SCALING", "RANKS", "NODES", "ENVS/RANK", "FRAMES/S", "FROM - TO", "EFFICIENCY", "ITERATION")
    rows = [_row(point) for point in found["points"]]
    listing = table((*columns, *(name.upper() for name in _PARTS), "FAILED"), rows)
    return "\n".join([head, listing, *found["findings"]])


def _row(point: Record) -> list[str]:
    fps, whole = point["fps"], point["iteration_s"]
    parts = [f"{point['parts_s'][name] / whole:.0%}" if name in point["parts_s"] else "" for name in _PARTS]
    failed = "\n".join(f"{one['cause']}: {one['message']} ({one['run_id']})" for one in point["failed"])
    place = [point["scaling"], str(point["world_size"]), str(point["num_nodes"] or ""), str(point["num_envs_per_rank"])]
    if fps is None:
        return [*place, "", "", "", "", *parts, failed]
    spread = f"{fps['min']:,.0f} - {fps['max']:,.0f}"
    return [*place, f"{fps['median']:,.0f}", spread, f"{point['efficiency']:.0%}", f"{whole:.3g} s", *parts, failed]
