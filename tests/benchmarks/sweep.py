"""How long it takes to submit a sweep, on a private Slurm cluster: ``make bench``. Goals: 1,000 runs in 10 s; linear.

The baseline is what a launcher that has Hydra compose every run spends on that alone, measured in the same minute.
The jobs are held: none of them runs while the others are submitted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from launcher.config.compose import compose
from tests.sandbox import Sandbox

_RUNS = (1_000, 10_000)
_COMPOSED = 100
_ROOT = Path(__file__).resolve().parents[2]
_OVERRIDES = ("task=cartpole,pendulum", "cluster=sandbox", "+cluster.extra_directives.hold=true")


def main() -> int:
    """Measure and print; returns 1 when a goal is missed."""
    each = _seconds_to_compose() / _COMPOSED
    with Sandbox.start(extra_conf="MaxJobCount=20000") as cluster:  # Slurm's own limit is 10,000, held jobs too
        seconds = {runs: _seconds_to_submit(cluster, runs) for runs in _RUNS}
    first, last = _RUNS
    for runs, taken in seconds.items():
        print(f"{runs:>5} runs in {taken:.1f} s; Hydra's composing alone would take {each * runs:.0f} s")
    growth = seconds[last] / seconds[first]
    print(f"growth {growth:.1f} for {last / first:.0f} times the runs; goals: {first} runs in 10 s, growth as the runs")
    return int(seconds[first] > 10 or growth > 1.2 * last / first)


def _seconds_to_compose() -> float:
    began = time.perf_counter()
    for seed in range(_COMPOSED):
        compose([f"seed={seed}", "cluster=sandbox"])
    return time.perf_counter() - began


def _seconds_to_submit(cluster: Sandbox, runs: int) -> float:
    command = [sys.executable, "-m", "launcher", "-m", *_OVERRIDES, f"seed=range({runs // 2})"]
    environment = {**os.environ, "SLURM_CONF": cluster.env["SLURM_CONF"], "PYTHONPATH": str(_ROOT)}
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        cluster.run(command, cwd=directory, env=environment, timeout=600, check=True)
        return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
