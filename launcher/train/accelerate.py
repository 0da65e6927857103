"""A script that uses Accelerate, as one rank: ``python -m launcher.train.accelerate SCRIPT ARGUMENTS…``.

It runs as under torchrun, and fails where Accelerate would quietly train something else than what was planned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from accelerate.state import PartialState

from launcher.train import script
from launcher.train.ending import end_gently


class WrongWorld(RuntimeError):
    """The script does not train in the world that was planned."""


class World:
    """The world as the plan has it, and as Accelerate comes to see it."""

    def __init__(self) -> None:
        self._planned = int(os.environ.get("LAUNCHER_WORLD_SIZE", "1"))
        self._joined = False

    def watch(self) -> None:
        """Check the world right after Accelerate has joined it, before anything is trained.

        Without a GPU and ACCELERATE_USE_CPU, or where a script makes a PartialState by itself, Accelerate sees one
        process in every rank, and each would train on its own and report success.
        """
        world, join = self, PartialState.__init__

        def init(self: PartialState, cpu: bool = False, **kwargs: Any) -> None:
            join(self, cpu, **{**_deepspeed_on_cpu(), **kwargs})
            world.see(self.num_processes)

        PartialState.__init__ = init

    def see(self, ranks: int) -> None:
        """Compare what Accelerate sees with the plan.

        Raises:
            WrongWorld: they differ.
        """
        self._joined = True
        if ranks != self._planned:
            raise WrongWorld(f"Accelerate sees a world of {ranks} ranks here, and the plan has {self._planned}")

    def check_end(self) -> None:
        """Check that the script has joined the world at all.

        Raises:
            WrongWorld: it has not, and there was more than one rank.
        """
        if not self._joined:
            self.see(dist.get_world_size() if dist.is_initialized() else 1)


def _deepspeed_on_cpu() -> dict[str, str]:
    """What nothing else tells Accelerate of DeepSpeed's world on CPUs: without a backend it would see one rank."""
    if os.environ.get("DS_ACCELERATOR") != "cpu":
        return {}
    from deepspeed import ops

    ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo does, and this takes minutes to compile
    return {"backend": "gloo"}


def run(command: Sequence[str]) -> None:
    """Run a script under watch.

    Raises:
        WrongWorld: it trains, or has trained, as independent processes.
    """
    world = World()
    world.watch()
    end_gently()
    script.run(command)
    world.check_end()


if __name__ == "__main__":
    run(sys.argv[1:])
