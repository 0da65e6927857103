"""``nccl diagnose``: which groups of ranks do not talk to each other, and which settings cure it, with the proof."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Generator, Sequence
from datetime import datetime
from pathlib import Path

from launcher.cli.arguments import Arguments
from launcher.cli.parser import Parser
from launcher.cli.start import composed_of
from launcher.config.compose import catalogue
from launcher.config.schema import Config, Device, Scheduler
from launcher.config.units import parse_time
from launcher.diagnose import report
from launcher.diagnose.remedies import fit_together, in_order, remedies
from launcher.diagnose.search import Names, Trial, diagnose
from launcher.diagnose.shapes import Shape, shapes
from launcher.diagnose.trials import INTERRUPTED, Start, Trials, here, look, on_nodes
from launcher.errors import UserError
from launcher.plan.environment import workaround_settings
from launcher.plan.plan import Plan, Setting
from launcher.records.files import write_atomic
from launcher.records.preflight import NodeReport
from launcher.slurm.allocation import visible_gpus
from launcher.slurm.held import held_allocation
from launcher.submission.prepare import plan_here
from launcher.submission.slurm import require_slurm

_TEXT = """\
Does what the field's guides tell you to do by hand: sums numbers over 2, 3, 4 … ranks, first within a node, then
across nodes, each test under a deadline. Where one hangs, fails or adds up wrongly it tries the settings of the
catalogue (`nccl list`), the likeliest first, keeps the smallest set that cures, takes it away again to see the trouble
return, and measures what it costs. With a cluster of Slurm's all of this is one job; without, it is this machine.

KEY=VALUE are those of a run: cluster=NAME cluster.nodes=N cluster.time=30 …"""
_EPILOG = """\
  python -m launcher nccl diagnose                               this machine, all its GPUs, or two ranks on its CPUs
  python -m launcher nccl diagnose cluster=lab cluster.nodes=4   four nodes
  python -m launcher nccl diagnose cluster=lab cluster.nodes=2 cluster.nodelist='gpu[07-08]' -o evidence
  python -m launcher nccl diagnose cluster=lab 'nccl=[]'         as if the profile had no settings of NCCL

It writes a directory: report.txt to read, report.json for programs, profile.yaml with lines for the cluster's profile.
exit codes: 0 healthy, 1 trouble found, cured or not, 2 a mistake in the command, 3 Slurm refused or is not there"""
_WAIT_S = 600


def nccl_diagnose(argv: Sequence[str]) -> int:
    """``nccl diagnose [OPTIONS] [KEY=VALUE ...]``; returns 0 where all is well, 1 where there is trouble."""
    options = _parser().parse_intermixed_args(argv)
    _require_words(options)
    arguments = Arguments(overrides=[*options.overrides, "snapshot=off"], config_dirs=options.config_dir)
    config = composed_of(arguments).config
    plan = plan_here(config)
    _require_sense(plan)
    now = datetime.now()
    folder = _folder(options.output or f"nccl-{config.cluster.name}-{now:%Y%m%d-%H%M%S}")
    try:
        with _nodes(plan, config, options) as (start, hosts, minutes):
            found = _diagnose(plan, config, options, start, hosts, minutes, f"{now:%Y-%m-%d %H:%M}")
        _write(folder, found)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # where nothing was written
    print(json.dumps(report.as_json(found), indent=2) if options.json else report.as_text(found), end="")
    _say(f"wrote {folder}/report.txt, report.json and profile.yaml")
    if found.diagnosis.unfinished == INTERRUPTED:
        return 128 + signal.SIGINT
    return 0 if found.diagnosis.healthy else 1


def _parser() -> Parser:
    parser = Parser(
        prog="python -m launcher nccl diagnose", description=_TEXT, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for a run")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto: nccl where GPUs are")
    parser.add_argument("--deadline", type=float, default=60, metavar="S", help="of one test, seconds (default 60)")
    parser.add_argument("--minutes", type=int, default=30, metavar="M", help="for all of it (default 30)")
    parser.add_argument("--wait", type=int, default=_WAIT_S, metavar="S", help="for free nodes (default 600)")
    parser.add_argument("--largest", type=int, metavar="BYTES", help="of the all-reduces (default 64 MiB, CPUs 8 MiB)")
    parser.add_argument("--json", action="store_true", help="print report.json instead of report.txt")
    parser.add_argument("-o", "--output", metavar="DIR", help="where the reports go (default: nccl-NAME-DATE)")
    parser.add_argument("--config-dir", "-cd", action="append", default=[], metavar="DIR", help="with your profiles")
    return parser


def _require_words(options: argparse.Namespace) -> None:
    for word in options.overrides:
        if "=" not in word:
            raise UserError(f"'{word}' is no KEY=VALUE, such as cluster=NAME; `nccl diagnose --help` has examples")
    if options.deadline <= 0 or options.minutes <= 0 or options.wait <= 0 or (options.largest or 8) < 8:
        raise UserError("--deadline, --minutes and --wait have to be above 0, and --largest 8 at least")


def _require_sense(plan: Plan) -> None:
    if plan.scheduler == "none":
        raise UserError("nccl diagnose starts its tests through Slurm or on this machine, and this profile has neither")
    if plan.container is not None:
        raise UserError("nccl diagnose does not start containers yet: cluster.container.runtime=null tests the hosts")
    if plan.scheduler == "slurm":
        require_slurm()


def _folder(text: str) -> Path:
    folder = Path(os.path.expanduser(text))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"-o {text}: {error.strerror}") from error
    return folder.absolute()


@contextlib.contextmanager
def _nodes(
    plan: Plan, config: Config, options: argparse.Namespace
) -> Generator[tuple[Start, Sequence[str], int]]:  # fmt: skip
    """A way to start programs, the hosts, and how many minutes there are."""
    if config.cluster.scheduler is not Scheduler.slurm:
        yield here, [socket.gethostname()], options.minutes
        return
    nodes = plan.resources.nodes
    asked = None if config.cluster.time is None else max(1, parse_time(config.cluster.time) // 60)
    minutes = min(options.minutes, asked or options.minutes)
    _say(f"waiting for {nodes} node{'s' if nodes > 1 else ''} of Slurm's, {options.wait} s at most …")
    with held_allocation(plan.directives, nodes, minutes, options.wait, plan.srun_args) as held:
        _say(f"job {held.job_id} on {', '.join(held.hosts)}")
        yield on_nodes(plan, held), held.hosts, minutes


def _diagnose(
    plan: Plan, config: Config, options: argparse.Namespace, start: Start, hosts: Sequence[str], minutes: int, when: str
) -> report.Findings:
    until = time.monotonic() + 60 * minutes - 15  # so that the report is written before the job's limit
    nodes = look(start, plan, hosts, config.watch.preflight_seconds)
    offered = remedies(catalogue(options.config_dir).entries(), config.nccl, nodes)

    def settings(names: Names) -> Sequence[Setting]:
        return tuple(workaround_settings({name: offered[name].entry for name in names}))

    backend = _backend(plan, options.backend)
    trials = Trials(start, plan, hosts, backend, options.deadline, until, settings, options.largest)

    def run(shape: Shape, names: Names, why: str) -> Trial:
        trial = trials.run(shape, names, why)
        _say(report.line_of(trial, hosts))
        return trial

    groups, fit = shapes(len(hosts), _ranks_per_node(config, nodes)), fit_together(offered, config.nccl)
    found = diagnose(groups, lambda trial: in_order(offered, trial), fit, run)
    name, in_force = config.cluster.name, tuple(config.nccl)
    return report.Findings(name, when, trials.backend, hosts, nodes, in_force, offered, found)


def _backend(plan: Plan, wish: str) -> str:
    """Which library the ranks talk through; ``auto`` where only the ranks of this machine can tell."""
    device = plan.training["device"]
    if wish != "auto" or (plan.scheduler != "slurm" and device == "auto"):
        return wish
    return "gloo" if device == "cpu" or (device == "auto" and not plan.resources.gpus_per_node) else "nccl"


def _ranks_per_node(config: Config, nodes: Sequence[NodeReport]) -> int:
    """As planned; on this machine, where nothing else is said, one per GPU, or two on its CPUs."""
    cluster = config.cluster
    if cluster.scheduler is Scheduler.slurm or cluster.nproc_per_node is not None or cluster.gpus_per_node:
        return cluster.ranks_per_node
    there = [gpu for report in nodes for gpu in report.facts.get("gpus", {}).get("gpus", []) if "error" not in gpu]
    gpus = len(visible_gpus(os.environ)) if "CUDA_VISIBLE_DEVICES" in os.environ else len(there)
    return 2 if cluster.device is Device.cpu else gpus or 2


def _write(folder: Path, found: report.Findings) -> None:
    try:
        write_atomic(folder / "report.json", json.dumps(report.as_json(found), indent=2) + "\n")
        write_atomic(folder / "report.txt", report.as_text(found))
        write_atomic(folder / "profile.yaml", report.profile_lines(found))
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
