"""From the start of a job to its first all-reduce, as a ratio to `srun torchrun` by hand. The goal is at most 0.7.

``python -m tests.benchmarks.start [PAIRS [fork|spawn|auto]]``: ``bench overhead`` on two nodes of a private Slurm
cluster, two ranks each, gloo. Beside it: memory of all processes of the job on a node (PSS: shared pages count in
parts), while its ranks wait; the goal is less than by hand.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from launcher.cli.bench_overhead import describe_overhead
from tests.sandbox import Sandbox
from tests.test_slurm import launch_on

_GOAL = 0.7


def main(arguments: list[str]) -> int:
    """Measure and print; returns 1 when the goal is missed."""
    pairs, method = int(arguments[0]) if arguments else 5, (arguments[1:] or ["auto"])[0]
    with Sandbox.start(nodes=2) as cluster:
        found = overhead(cluster, 2, 2, pairs, f"cluster.start={method}")
    print(describe_overhead(found))
    start, memory = found["ratio"]["first_sum_s"], found["ratio"]["memory_mib"]
    print(f"ratio {start:.2f} (goal: at most {_GOAL}), of the memory {memory:.2f} (goal: less than 1)")
    return int(start > _GOAL or memory >= 1)


def overhead(cluster: Sandbox, nodes: int, ranks: int, pairs: int, *words: str) -> dict[str, Any]:
    """What ``bench overhead`` finds on so many nodes of a private cluster, with so many ranks on each."""
    with tempfile.TemporaryDirectory() as directory:
        done = launch_on(
            cluster, Path(directory), "bench", "overhead", "cluster=sandbox", f"cluster.nodes={nodes}", "--json",
            f"cluster.nproc_per_node={ranks}", "cluster.gpus_per_node=0", f"bench.repetitions={pairs}", *words,
            timeout=1200,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
