"""A FAKE of an interconnect that is sick, for tests without GPUs: on PYTHONPATH, Python imports it at its start.

It stands for the hardware under `torch.distributed.all_reduce` alone: a call of that hangs for ever in the ranks and at
the world sizes that SICK_INTERCONNECT names, unless the variables that cure it are set. All else is the real thing.

    SICK_INTERCONNECT='{"world_sizes": [3], "cured_by": ["NCCL_SHM_DISABLE"], "ranks": [1], "slow": 0.1}'

cured_by: all of them; without it nothing cures. ranks: those that hang; without it all do. start: they hang before they
import torch, as on a file system that is gone. slow: with the cure an all-reduce takes so many seconds more.
"""

import json
import os
import time
from typing import Any


def _fall_sick(said: str) -> None:
    sickness = json.loads(said)
    cures = sickness.get("cured_by", [])
    cured = bool(cures) and all(name in os.environ for name in cures)
    rank = int(os.environ["RANK"])
    at_this_size = int(os.environ["WORLD_SIZE"]) in sickness["world_sizes"]
    hangs = not cured and at_this_size and rank in sickness.get("ranks", [rank])
    while hangs and sickness.get("start"):
        time.sleep(1)

    import torch.distributed as dist

    healthy = dist.all_reduce

    def all_reduce(*arguments: Any) -> None:
        while hangs:
            time.sleep(1)
        healthy(*arguments)
        if cured:
            time.sleep(sickness.get("slow", 0))

    dist.all_reduce = all_reduce


if os.environ.get("SICK_INTERCONNECT") and "RANK" in os.environ:
    _fall_sick(os.environ["SICK_INTERCONNECT"])
