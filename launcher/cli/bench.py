"""``bench``: how fast a task starts, steps and learns, as a bundle of numbers that can be kept and published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.arguments import Arguments, read
from launcher.cli.bench_compare import compare
from launcher.cli.bench_overhead import overhead
from launcher.cli.bench_runs import aside, benchmark_overrides, bundle_if_ended, bundle_in
from launcher.cli.bench_scaling import found_in, scaling, show_scaling
from launcher.cli.bench_text import describe_bundle
from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.start import as_typed, composed_of, start_plan
from launcher.errors import LauncherError, UserError
from launcher.records import rundir, sweepdir
from launcher.records.files import write_json
from launcher.records.rundir import RunDir
from launcher.submission.prepare import plan_here

_TEXT = """\
usage: python -m launcher bench KIND [KEY=VALUE ...] [--json] [-o FILE]

Measures a task under a library, on this machine or on a cluster, with all its ranks at once.

  bench startup  [KEY=VALUE ...]   how long rank 0 takes from the launch to its first step, while all others start, too
  bench runtime  [KEY=VALUE ...]   how fast rank 0 steps its environments, while every rank steps its own
  bench training [KEY=VALUE ...]   how fast all ranks together learn, in step
  bench scaling  [KEY=VALUE ...]   the same training on more and more ranks: a table and a picture
  bench overhead [KEY=VALUE ...]   what the launcher itself costs here, or on a cluster, against torchrun by hand
  bench show RUN|SWEEP             what a benchmark has found whose command did not wait for it
  bench compare A B                two results side by side, files or runs; differences beyond the noise are marked

KEY=VALUE are those of a run. A benchmark of training does 50 iterations (max_iterations=N), one of stepping 1,000 steps
(bench.steps=N), after a warm-up (bench.warmup=N) that does not count. It saves no checkpoint but the last and is not
started again when it fails. It waits for its end; on a cluster wait=false submits it only.

  python -m launcher bench training task=ant library=rsl_rl cluster=a100x2 cluster.nodes=2
  python -m launcher bench runtime task=ant cluster.nproc_per_node=4 --json
  python -m launcher bench scaling task=ant cluster=a100x2 'bench.world_sizes=[1,2,4,8]'

options
  --json           print the bundle, and everything else to standard error
  -o FILE          write it to FILE, too; it always is in the run's directory, as benchmark.json
  -o DIR           of scaling: copy table and pictures there
  --config-dir DIR as for a run

What each number means is in docs/benchmarks.md."""
WORKLOADS = ("startup", "runtime", "training")


def bench(argv: Sequence[str]) -> int:
    """``bench WHAT ...``; returns the exit code of the run, or 0 of what only looks at results."""
    what, *rest = argv or ["--help"]
    if what in ("-h", "--help") or {"-h", "--help"} & {*rest}:
        print(_TEXT)
        return 0
    if what in WORKLOADS:
        return _measure(what, read(rest, verb="bench"))
    if what == "scaling":
        return scaling(read(rest, verb="bench"))
    if what == "overhead":
        return overhead(read(rest, verb="bench"))
    if what in _LOOKS:
        return _LOOKS[what](rest)
    known = ", ".join([*WORKLOADS, "scaling", "overhead", *_LOOKS])
    raise UserError(f"bench '{what}': there are {known}; `bench --help` says more")


def _measure(workload: str, arguments: Arguments) -> int:
    arguments.overrides = benchmark_overrides(workload, arguments.overrides)
    composed = composed_of(arguments)
    plan = plan_here(composed.config)
    run = RunDir(Path(plan.run_dir))
    try:
        with aside(arguments.json):
            code = start_plan(plan, composed)
    except LauncherError:
        if run.path.exists():
            bundle_if_ended(run)  # nobody else is left to write it
        raise
    if composed.config.dry_run or plan.scheduler == "none":
        return code
    if not run.result.exists():
        with aside(arguments.json):
            print(f"  result  python -m launcher bench show {as_typed(run.path)}")
        return code
    _tell(run, arguments.json, arguments.output)
    return code


def _show(argv: Sequence[str]) -> int:
    parser = parser_of("bench show", "The result of a benchmark; of `bench scaling` what it has shown until now.")
    parser.add_argument("run", metavar="RUN|SWEEP", help=f"{RUN_HELP}; or what `bench scaling` made")
    parser.add_argument("--json", action="store_true", help="the result itself")
    parser.add_argument("-o", "--output", metavar="PLACE", help="write it to this file, or directory, too")
    options, runs_dir = parse(parser, argv)
    sweep = sweepdir.find(runs_dir, options.run)
    if sweep is not None and (found := found_in(sweep)):
        show_scaling(sweep, found, options.json, options.output)
        return 0
    _tell(rundir.find(runs_dir, options.run), options.json, options.output)
    return 0


def _tell(run: RunDir, as_json: bool, output: str | None) -> None:
    bundle = bundle_in(run)
    if output is not None:
        try:
            write_json(Path(output), bundle)
        except OSError as error:
            raise UserError(f"cannot write '{output}': {error.strerror}") from error
    print(json.dumps(bundle, indent=2) if as_json else f"{describe_bundle(bundle)}\n  bundle       {run.benchmark}")


_LOOKS = {"show": _show, "compare": compare}
"""What starts nothing."""
