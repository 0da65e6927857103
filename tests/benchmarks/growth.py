"""The same start on 1, 4 and 16 nodes, as ratios to `srun torchrun` by hand. The goal is at most 1.5 on each.

``python -m tests.benchmarks.growth [NODES ...]``: ``bench overhead`` with one rank on each node, one pair of jobs after
one that fills the caches. All nodes are this machine: 16 starts of torch share its processors, by hand even 32, and 64
nodes by hand would not fit into its memory (``many_nodes`` goes there, with a stand-in for torchrun).
"""

from __future__ import annotations

import sys

from launcher.cli.bench_overhead import describe_overhead
from tests.benchmarks.start import overhead
from tests.sandbox import Sandbox

_GOAL = 1.5


def main(arguments: list[str]) -> int:
    """Measure and print; returns 1 when the goal is missed."""
    ratios: list[float] = []
    for nodes in map(int, arguments or ("1", "4", "16")):
        with Sandbox.start(nodes=nodes, gpus=0, accounting=False) as cluster:
            found = overhead(cluster, nodes, 1, 1)
        print(describe_overhead(found), flush=True)
        ratios.append(found["ratio"]["first_sum_s"])
    print(f"ratios {', '.join(f'{ratio:.2f}' for ratio in ratios)} (goal: at most {_GOAL})")
    return int(max(ratios) > _GOAL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
