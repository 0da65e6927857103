"""The script whose start ``bench overhead`` measures: joins the process group, sums once over all ranks, says when.

``python first_sum.py DIRECTORY MARK`` under torchrun, whoever started that: it needs torch and nothing of the launcher.
The processes of the job are known by the variable MARK, and those of a node by SLURMD_NODENAME. DIRECTORY gets
``rank-N.json`` of each rank: ``done``, the time of its sum in seconds since the epoch, ``device``, and of each node's
first rank ``memory_mib``, what all processes of the job on its node occupy while the ranks wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist


def main(directory: Path, mark: str) -> None:
    """Sum, tell, and leave when all have told."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    if total.item() != dist.get_world_size():
        raise RuntimeError(f"the sum over {dist.get_world_size()} ranks is {total.item()}")
    told = {"done": time.time(), "device": device.type, "memory_mib": None}
    dist.barrier()
    if local_rank == 0:
        told["memory_mib"] = sum(_processes(mark))
    (directory / f"rank-{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def _processes(mark: str) -> Iterator[float]:
    """MiB of each process of this job on this node: PSS, in which shared pages count in parts."""
    names = [name for name in (mark, "SLURMD_NODENAME") if name in os.environ]
    ours = {f"{name}={os.environ[name]}" for name in names}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if ours <= set((entry / "environ").read_bytes().decode(errors="replace").split("\0")):
                for kib in re.findall(r"^Pss:\s+(\d+) kB", (entry / "smaps_rollup").read_text(), re.MULTILINE):
                    yield int(kib) / 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
