"""An Isaac Lab task as one rank: ``python -m launcher.train.isaaclab ARGUMENTS…``, started by torchrun.

The arguments are those of `isaaclab train`, and so is the training: what `isaaclab train_multigpu` starts on every rank
is called here. With ``--workflow``, as the first of them, it is what `isaaclab benchmark WORKFLOW_multigpu` starts.
Added is what only the node knows: the device, whether there are other ranks, and the checkpoint to go on from.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.records.isaaclab import DIRECTORY
from launcher.train import cpu_ranks
from launcher.train.here import read_plan
from launcher.train.observed import checkpoint_file
from launcher.train.timings import Timings


def main(arguments: list[str]) -> int:
    """Train or measure as the arguments say; returns the exit code of Isaac Lab's entry point.

    Raises:
        RuntimeError: this interpreter has no Isaac Lab.
    """
    plan = read_plan()["training"]
    timings = Timings(plan["bench"])
    on_cpu = cpu_ranks.settle(plan["device"])
    enter, library = _entry_point(plan["bench"] is not None), _library(arguments)
    if on_cpu:
        _admit_cpu(library)
    if library is not None:
        importlib.import_module(f"launcher.train.observed_{library}").observe(timings)
    os.chdir(os.environ["LAUNCHER_RUN_DIR"])  # Isaac Lab writes to logs/ where it is started
    if plan["bench"] is None:
        return enter([*arguments, *_added(library, on_cpu), *_resume(library)])
    from launcher.train import observed_isaaclab

    words = [*arguments, *_added(library, on_cpu), *_own(plan["seed"], library)]
    return observed_isaaclab.run(plan["bench"]["workload"], timings, lambda: enter(words))


def _entry_point(measures: bool) -> Callable[[list[str]], int]:
    try:
        import warp  # pyright: ignore[reportMissingImports]

        warp.config.enable_backward = False  # as in train_multigpu: read when a module with kernels is imported
        if measures:
            from isaaclab.benchmark.entrypoints import multigpu  # pyright: ignore[reportMissingImports]

            return multigpu.run_worker
        from isaaclab_rl.entrypoints import dispatch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        hint = "`make isaaclab-env`, then cluster.python=.venv-isaaclab/bin/python"
        raise RuntimeError(f"{sys.executable} has no {error.name}: {hint}") from error
    return dispatch.run_train_cli


def _library(arguments: list[str]) -> str | None:
    """None where environments are stepped without one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--rl_library")
    return parser.parse_known_args(arguments)[0].rl_library


def _admit_cpu(library: str | None) -> None:
    cpu_ranks.admit_isaaclab()
    if library == "rsl_rl":
        cpu_ranks.admit_rsl_rl()
    elif library == "rl_games":
        cpu_ranks.admit_rl_games()


def _added(library: str | None, on_cpu: bool) -> Iterator[str]:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield "--distributed"
    elif on_cpu:
        yield from ("--device", "cpu")
        if library == "rsl_rl":
            yield "agent.device=cpu"


def _resume(library: str | None) -> Iterator[str]:
    found = None if library is None else checkpoint_file(library)
    if found is not None:
        yield from ("--checkpoint", str(found[1]))


def _own(seed: int, library: str | None) -> Iterator[str]:
    """Where rank 0 writes what it measures; and seeds of their own, which Isaac Lab gives to ranks that train only."""
    yield from ("--output_path", str(Path(os.environ["LAUNCHER_STOP_FILE"]).with_name(DIRECTORY)))
    if library is None:
        yield from ("--seed", str(seed + int(os.environ.get("RANK", "0"))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
