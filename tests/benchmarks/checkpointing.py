"""What saving costs a training: its time with checkpoints as usual, as a ratio to the time without. The goal is 1.02.

``python -m tests.benchmarks.checkpointing [PAIRS]``: cartpole with RSL-RL, two ranks, one run. It saves in every second
block of iterations, so that a slow moment of the machine meets both kinds. A save is over within some iterations: these
are compared with the same ones of the blocks before and after it, and the median of the differences counts.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from launcher.train import course, rsl_rl

_BLOCK, _FIRST, _AFTER = 20, 10, 4
"""Iterations of a block; before the first one, so that a save, every 20, is in the middle of its block; of a save."""
_ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
_OVERRIDES = ("task=cartpole", "cluster.nproc_per_node=2", "task.solved=null", f"library.module={__spec__.name}")


def main(arguments: list[str]) -> int:
    """Measure and print; returns 1 when the goal is missed."""
    pairs = int(arguments[0]) if arguments else 30
    iterations = _iteration_times(_FIRST + _BLOCK * (2 * pairs + 1))
    block = _BLOCK * statistics.median(iterations)
    times = [sum(iterations[at : at + _AFTER]) for at in range(_FIRST + _BLOCK // 2, len(iterations), _BLOCK)]
    costs = [times[at] - (times[at - 1] + times[at + 1]) / 2 for at in range(1, len(times) - 1, 2)]
    ratio, (lower, _, upper) = 1 + statistics.median(costs) / block, statistics.quantiles(costs, n=4)
    print(f"{block / _BLOCK * 1000:.1f} ms an iteration, {statistics.median(costs) * 1000:.1f} ms a save")
    print(
        f"ratio {ratio:.4f}, half of {pairs} between {1 + lower / block:.3f} and {1 + upper / block:.3f} (goal: 1.02)"
    )
    return int(ratio >= 1.02)


def _iteration_times(count: int) -> list[float]:
    """Seconds of each iteration of a run; at index i from the end of iteration i, where it is saved, to the next's."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "launcher", *_OVERRIDES, f"max_iterations={count}", f"runs_dir={directory}"]
        subprocess.run(command, cwd=_ROOT, check=True, env=_ENVIRONMENT, stdout=subprocess.DEVNULL)
        (run,) = Path(directory).iterdir()
        times = [json.loads(line)["time"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [0.0, *(after - before for before, after in itertools.pairwise(times))]


class _InEverySecondBlock(course.Schedule):
    """Nothing is due in the others."""

    def due(self, done: int) -> bool:
        saves = (done - _FIRST) // _BLOCK % 2 == 1
        if not saves:
            self.begun(done)
        return saves and super().due(done)


def _train() -> None:
    """As one rank of the run."""
    course.Schedule = _InEverySecondBlock
    rsl_rl.main()


if __name__ == "__main__":
    if "LAUNCHER_RUN_DIR" in os.environ:
        _train()
    else:
        sys.exit(main(sys.argv[1:]))
