"""An Isaac Lab task as one rank: ``python -m launcher.train.isaaclab ARGUMENTS…``, started by torchrun.

The arguments are those of `isaaclab train`, and so is the training: what `isaaclab train_multigpu` starts on every rank
is called here. Added is what only the node knows: the device, whether there are other ranks, and the checkpoint to go
on from.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from launcher.train import cpu_ranks
from launcher.train.here import read_plan
from launcher.train.observed import checkpoint_file


def main(arguments: list[str]) -> int:
    """Train as the arguments say; returns the exit code of Isaac Lab's entry point.

    Raises:
        RuntimeError: this interpreter has no Isaac Lab.
    """
    on_cpu = cpu_ranks.settle(read_plan()["training"]["device"])
    dispatch, library = _imported(), _library(arguments)
    if on_cpu:
        _admit_cpu(library)
    importlib.import_module(f"launcher.train.observed_{library}").observe()
    os.chdir(os.environ["LAUNCHER_RUN_DIR"])  # Isaac Lab writes to logs/ where it is started
    return dispatch.run_train_cli([*arguments, *_added(library, on_cpu)])


def _imported() -> Any:
    try:
        import warp  # pyright: ignore[reportMissingImports]

        warp.config.enable_backward = False  # as in train_multigpu: read when a module with kernels is imported
        from isaaclab_rl.entrypoints import dispatch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        hint = "`make isaaclab-env`, then cluster.python=.venv-isaaclab/bin/python"
        raise RuntimeError(f"{sys.executable} has no {error.name}: {hint}") from error
    return dispatch


def _library(arguments: list[str]) -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--rl_library")
    return parser.parse_known_args(arguments)[0].rl_library


def _admit_cpu(library: str) -> None:
    cpu_ranks.admit_isaaclab()
    if library == "rsl_rl":
        cpu_ranks.admit_rsl_rl()
    elif library == "rl_games":
        cpu_ranks.admit_rl_games()


def _added(library: str, on_cpu: bool) -> Iterator[str]:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield "--distributed"
    elif on_cpu:
        yield from ("--device", "cpu")
        if library == "rsl_rl":
            yield "agent.device=cpu"
    found = checkpoint_file(library)
    if found is not None:
        yield from ("--checkpoint", str(found[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
