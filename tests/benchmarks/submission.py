"""One submission, the whole command, as a ratio to composing with Hydra and calling sbatch. The goal is at most 1.25.

``python -m tests.benchmarks.submission [ROUNDS]``: on the login node of a private Slurm cluster the three commands take
turns: an application that composes our `conf/` with Hydra and prints it, sbatch of a script, and ours. The jobs are not
to begin before an hour has passed, and are cancelled. Peak memory is ours, with all that it starts (goal: 40 MiB).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.sandbox import Sandbox
from tests.test_slurm import in_cluster

_GOAL, _GOAL_MIB = 1.25, 40
_ROOT = Path(__file__).resolve().parents[2]
_LATER = "now+1hour"
_COMPOSE = """\
import hydra
from omegaconf import OmegaConf
from hydra.core.config_store import ConfigStore
from launcher.config.schema import Config

ConfigStore.instance().store("schema", Config)

@hydra.main(version_base="1.3", config_path=%r, config_name="config")
def main(config):
    print(OmegaConf.to_yaml(config))

main()
"""
_OURS = ("task=cartpole", "cluster=sandbox", f"cluster.extra_directives.begin={_LATER}")


def main(arguments: list[str]) -> int:
    """Measure and print; returns 1 when a goal is missed."""
    if arguments[:1] == ["inside"]:
        print(json.dumps([_round() for _ in range(int(arguments[1]))]))
        return 0
    rounds = arguments[0] if arguments else "10"
    with Sandbox.start(nodes=2) as cluster, tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", __spec__.name, "inside", rounds]
        environment = {**in_cluster(cluster), "PYTHONPATH": str(_ROOT)}
        done = cluster.run(command, cwd=directory, env=environment, timeout=600, check=True)
    compose, sbatch, ours, peaks = zip(*json.loads(done.stdout.splitlines()[-1]))
    ratio = statistics.median(ours) / (statistics.median(compose) + statistics.median(sbatch))
    peak = max(peaks) / 1024
    print(f"Hydra alone {_shown(compose)}, sbatch {_shown(sbatch)}, ours {_shown(ours)}")
    print(f"ratio {ratio:.2f} (goal: {_GOAL})")
    print(f"peak memory {peak:.0f} MiB (goal: {_GOAL_MIB})")
    return int(ratio > _GOAL or peak > _GOAL_MIB)


def _shown(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):.0f} ms ({1000 * min(seconds):.0f} to {1000 * max(seconds):.0f})"


def _round() -> tuple[float, float, float, int]:
    """Seconds of the three commands, and KiB of ours; on the login node, in a directory of their own."""
    Path("app.py").write_text(_COMPOSE % str(_ROOT / "conf"))
    Path("job.sh").write_text("#!/bin/bash\ntrue\n")
    compose, _ = _run([sys.executable, "app.py", "task=cartpole", "cluster=sandbox", "hydra.run.dir=.",
                       "hydra.output_subdir=null"])  # fmt: skip
    sbatch, _ = _run(["sbatch", f"--begin={_LATER}", "job.sh"])
    ours, peak = _run([sys.executable, "-m", "launcher", *_OURS])
    subprocess.run(["scancel", "--me"], check=True)
    return compose, sbatch, ours, peak


def _run(command: Sequence[str]) -> tuple[float, int]:
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed")
    return time.perf_counter() - began, usage.ru_maxrss


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
