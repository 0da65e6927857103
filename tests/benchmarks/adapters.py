"""Throughput of each RL library under the launcher, as a ratio to the library's own plain loop. The goal is 0.98.

``python -m tests.benchmarks.adapters [ROUNDS [LIBRARY …]]``: pendulum, one rank, 64 environments. The two run at once,
each on its half of the processors, so that a slow moment of the machine meets both, and change places in every round;
the ratio is the median of those of the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.plain_loops import LOOPS, WARM
from tests.test_local import wait_until

_ITERATIONS = 45
_ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def main(arguments: list[str]) -> int:
    """Measure and print; returns 1 when a library misses the goal."""
    rounds = int(arguments[0]) if arguments else 5
    ratios = {library: _ratio(library, rounds) for library in arguments[1:] or LOOPS}
    return int(min(ratios.values()) < 0.98)


def _ratio(library: str, rounds: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        pairs = [_pair(library, Path(directory) / str(number), number % 2) for number in range(rounds)]
    ours, plain = (statistics.median(times) for times in zip(*pairs))
    low, ratio, high = statistics.quantiles((there / here for here, there in pairs), n=4)
    print(f"{library:<9} plain {plain * 1000:.1f} ms, here {ours * 1000:.1f} ms an iteration: throughput × {ratio:.3f}")
    print(f"{'':<9} half of {rounds} rounds between {low:.3f} and {high:.3f}")
    return ratio


def _pair(library: str, directory: Path, place: int) -> tuple[float, float]:
    """Seconds of an iteration, here and plain."""
    overrides = ("task=pendulum", f"library={library}", "task.solved=null", f"max_iterations={_ITERATIONS}")
    here = _started(place, "launcher", *overrides, f"runs_dir={directory}")
    plan = wait_until(lambda: next(directory.glob("*/plan.json"), None))
    plain = _started(
        1 - place, "tests.benchmarks.plain_loops", library, str(plan), str(_ITERATIONS), f"{directory}-plain"
    )
    said, _ = plain.communicate()
    here.communicate()
    times = [json.loads(line)["time"] for line in (plan.parent / "metrics.jsonl").read_text().splitlines()]
    return (times[-1] - times[WARM - 1]) / (_ITERATIONS - WARM), float(said.split()[-1])


def _started(place: int, *words: str) -> subprocess.Popen[str]:
    """A Python program on one half of the processors."""
    ours = sorted(os.sched_getaffinity(0))[place::2]
    return subprocess.Popen(
        [sys.executable, "-m", *words], cwd=_ROOT, env=_ENVIRONMENT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, ours),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
