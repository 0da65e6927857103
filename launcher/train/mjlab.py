"""An mjlab task as one rank: ``python -m launcher.train.mjlab TASK-ID ARGUMENTS…``, started by torchrun.

The arguments are those of mjlab's own `train`, and so is the training. mjlab's launcher is left out: it starts ranks on
one machine only, and gives them no seeds and no logs of their own on CPUs.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch

from launcher.train import cpu_ranks
from launcher.train.here import read_plan
from launcher.train.observed import checkpoint_file
from launcher.train.timings import Timings


def main(arguments: list[str]) -> None:
    """Train as the arguments say.

    Raises:
        RuntimeError: this interpreter has no mjlab.
    """
    on_cpu = cpu_ranks.settle(read_plan()["training"]["device"])
    _name_devices(on_cpu)
    train = _imported()
    from launcher.train import observed_rsl_rl

    if on_cpu:
        cpu_ranks.admit_rsl_rl()
    observed_rsl_rl.observe(Timings(None))
    task, config = _parse(train, arguments)
    _resume(train, config)
    train.run_train(task, config, _place(config, on_cpu))


def _imported() -> Any:
    try:
        from mjlab.scripts import train  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        hint = "`make mjlab-env`, then cluster.python=.venv-mjlab/bin/python"
        raise RuntimeError(f"{sys.executable} has no {error.name}: {hint}") from error
    return train


def _name_devices(on_cpu: bool) -> None:
    """mjlab computes on the CPU where CUDA_VISIBLE_DEVICES is empty or absent, GPUs or not."""
    if on_cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not os.environ.get("CUDA_VISIBLE_DEVICES"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(torch.cuda.device_count())))


def _parse(train: Any, arguments: list[str]) -> tuple[str, Any]:
    """As mjlab's `train` reads its command line: a task, and any field of its configuration.

    Raises:
        RuntimeError: there is no such task.
    """
    import tyro  # pyright: ignore[reportMissingImports]

    importlib.import_module("mjlab.tasks")  # registers them
    flags = importlib.import_module("mjlab").TYRO_FLAGS
    task, *rest = arguments
    if task not in train.list_tasks():
        raise RuntimeError(f"mjlab has no task {task}: it has {', '.join(train.list_tasks())}")
    default = train.TrainConfig.from_task(task)
    return task, tyro.cli(train.TrainConfig, args=rest, default=default, prog=task, config=flags)


def _resume(train: Any, config: Any) -> None:
    """mjlab looks for checkpoints among its own logs; here the agents have chosen one."""
    found = checkpoint_file("rsl_rl")
    if found is not None:
        config.agent.resume = True
        train.get_checkpoint_path = lambda *_: found[1]


def _place(config: Any, on_cpu: bool) -> Path:
    """The log directory, one for all nodes and attempts; on CPUs every rank takes itself for the first."""
    run_dir = Path(os.environ["LAUNCHER_RUN_DIR"])
    path = run_dir / "logs" / "rsl_rl" / config.agent.experiment_name / run_dir.name
    rank = int(os.environ.get("RANK", "0"))
    if on_cpu:
        config.agent.seed += rank
        return path / f"rank_{rank}" if rank else path
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
