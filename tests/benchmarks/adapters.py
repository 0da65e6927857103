"""Throughput of each RL library under the launcher, as a ratio to the library's own plain loop. The goal is 0.98.

``python -m tests.benchmarks.adapters [ROUNDS [LIBRARY …]]``: pendulum, one rank, 64 environments. The two take turns,
so that a slow moment of the machine meets both; the ratio is the median of those of the rounds.
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
        pairs = [_pair(library, Path(directory) / str(number)) for number in range(rounds)]
    ours, plain = (statistics.median(times) for times in zip(*pairs))
    low, ratio, high = statistics.quantiles((there / here for here, there in pairs), n=4)
    print(f"{library:<9} plain {plain * 1000:.1f} ms, here {ours * 1000:.1f} ms an iteration: throughput × {ratio:.3f}")
    print(f"{'':<9} half of {rounds} rounds between {low:.3f} and {high:.3f}")
    return ratio


def _pair(library: str, directory: Path) -> tuple[float, float]:
    """Seconds of an iteration, here and plain."""
    overrides = ("task=pendulum", f"library={library}", "task.solved=null", f"max_iterations={_ITERATIONS}")
    here = [sys.executable, "-m", "launcher", *overrides, f"runs_dir={directory}"]
    subprocess.run(here, cwd=_ROOT, check=True, env=_ENVIRONMENT, stdout=subprocess.DEVNULL)
    (run,) = directory.iterdir()
    times = [json.loads(line)["time"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    ours = (times[-1] - times[WARM - 1]) / (_ITERATIONS - WARM)
    words = (library, str(run / "plan.json"), str(_ITERATIONS), str(directory / "plain"))
    plain = [sys.executable, "-m", "tests.benchmarks.plain_loops", *words]
    done = subprocess.run(plain, cwd=_ROOT, check=True, env=_ENVIRONMENT, capture_output=True, text=True)
    return ours, float(done.stdout.split()[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
