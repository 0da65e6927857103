"""What being watched costs a training: its time with the watch, as a ratio to the time without. The goal is 1.01.

``python -m tests.benchmarks.watching [PAIRS]``: cartpole with RSL-RL, two ranks, one run. In every second block of
iterations nobody watches: the node agent is stopped (its pulses, its samples), and so are the threads in the ranks
that tell of their collectives. Each block with the watch is compared with those before and after it, so that a slow
moment of the machine meets both kinds; the median of the ratios counts. What the thread of a rank and the agent took of
a processor meanwhile is told besides: it does not depend on what else the machine does.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from launcher.train import course, rsl_rl

_BLOCK, _FIRST = 20, 10
"""Iterations of a block, about a second; and before the first one."""
_ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
_OVERRIDES = (
    "task=cartpole", "num_envs=16", "agent.num_steps_per_env=16", "cluster.nproc_per_node=2", "task.solved=null",
    "checkpoint.every=null", "agent.algorithm.num_learning_epochs=1", "agent.algorithm.num_mini_batches=1",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Measure and print; returns 1 when the goal is missed."""
    pairs = int(arguments[0]) if arguments else 60
    blocks, shares = _measure(_FIRST + _BLOCK * (2 * pairs + 1))
    ratios = [blocks[at] / statistics.mean((blocks[at - 1], blocks[at + 1])) for at in range(1, len(blocks) - 1, 2)]
    lower, median, upper = statistics.quantiles(ratios, n=4)
    print(f"{statistics.median(blocks):.2f} s a block of {_BLOCK} iterations; of a processor while watched: {shares}")
    print(f"ratio {median:.4f}, half of {len(ratios)} pairs between {lower:.3f} and {upper:.3f} (goal: 1.01)")
    return int(median > 1.01)


def _measure(iterations: int) -> tuple[list[float], str]:
    """Seconds of each block, the watched ones at odd indices; and what the watch took of the processors."""
    with tempfile.TemporaryDirectory() as directory:
        words = (
            *_OVERRIDES,
            f"library.module={__spec__.name}",
            f"max_iterations={iterations}",
            f"runs_dir={directory}",
        )
        command = [sys.executable, "-m", "launcher", *words]
        subprocess.run(command, cwd=_ROOT, check=True, env=_ENVIRONMENT, stdout=subprocess.DEVNULL)
        (run,) = Path(directory).iterdir()
        times = [json.loads(line)["time"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        shares = (run / "shares").read_text()
    return [after - before for before, after in itertools.pairwise(times[_FIRST - 1 :: _BLOCK])], shares


class _Switch:
    """The watch over this rank, on and off."""

    def __init__(self) -> None:
        thread: Any = next(one for one in threading.enumerate() if one.name == "launcher-watch")
        self._tick: Any = thread._target
        cells = (cell.cell_contents for cell in self._tick.__closure__)
        self._over = next(one for one in cells if isinstance(one, threading.Event))
        self._thread: threading.Thread = thread
        self._agent = _parent(os.getppid()) if os.environ["RANK"] == "0" else None
        self._on, self._watched_s, self._thread_s, self._agent_s = True, 0.0, 0.0, 0.0
        self._began, self._agent_began = time.monotonic(), self._agent_cpu()

    def turn(self, on: bool) -> None:
        """Have the watch be so from now on."""
        if on != self._on:
            self._on = on
            (self._resume if on else self._pause)()

    def _pause(self) -> None:
        self._watched_s += time.monotonic() - self._began
        self._agent_s += self._agent_cpu() - self._agent_began
        self._over.set()
        self._thread.join()
        if self._agent is not None:
            os.kill(self._agent, signal.SIGSTOP)

    def _resume(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self._timed, daemon=True)
        self._thread.start()
        if self._agent is not None:
            os.kill(self._agent, signal.SIGCONT)
        self._began, self._agent_began = time.monotonic(), self._agent_cpu()

    def _timed(self) -> None:
        self._tick()
        self._thread_s += time.thread_time()

    def _agent_cpu(self) -> float:
        """Seconds of processors that the agent has used."""
        if self._agent is None:
            return 0.0
        return int(Path(f"/proc/{self._agent}/schedstat").read_text().split()[0]) / 1e9

    def tell(self) -> None:
        """For the table."""
        if self._agent is not None:
            shares = f"thread {self._thread_s / self._watched_s:.3%}, agent {self._agent_s / self._watched_s:.3%}"
            Path(os.environ["LAUNCHER_RUN_DIR"], "shares").write_text(shares)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _train() -> None:
    """As one rank of the run."""
    after_iteration, switches = course.Course.after_iteration, list[_Switch]()

    def watched_in_every_second_block(self: course.Course, done: int, *rest: Any) -> None:
        if not switches:
            switches.append(_Switch())
        switches[0].turn((done - _FIRST) // _BLOCK % 2 == 1)
        after_iteration(self, done, *rest)

    course.Course.after_iteration = watched_in_every_second_block  # pyright: ignore[reportAttributeAccessIssue]
    try:
        rsl_rl.main()
    finally:
        switches[0].turn(True)
        switches[0].tell()


if __name__ == "__main__":
    if "LAUNCHER_RUN_DIR" in os.environ:
        _train()
    else:
        sys.exit(main(sys.argv[1:]))
