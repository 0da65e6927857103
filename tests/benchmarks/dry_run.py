"""How long a dry run takes, as a ratio to a trivial Hydra application: ``make bench``. The goal is at most 1.5.

The two commands take turns, so that a slow moment of the machine meets both; the medians are compared.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_ROUNDS = 15
_ROOT = Path(__file__).resolve().parents[2]
_TRIVIAL = """\
import hydra

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config):
    print(config)

main()
"""


def main() -> int:
    """Measure and print; returns 1 when the goal is missed."""
    with tempfile.TemporaryDirectory() as directory:
        baseline = _trivial_application(Path(directory))
        ours = [sys.executable, "-m", "launcher", "cluster=a100x2", "cluster.nodes=2", "dry_run=true"]
        times: dict[str, list[float]] = {"hydra": [], "dry run": []}
        for _ in range(_ROUNDS):
            times["hydra"].append(_seconds(baseline, directory))
            times["dry run"].append(_seconds(ours, str(_ROOT)))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["dry run"] / medians["hydra"]
    for name, values in times.items():
        lowest, highest = min(values) * 1000, max(values) * 1000
        print(f"{name:<8} median {medians[name] * 1000:.0f} ms, from {lowest:.0f} to {highest:.0f}")
    print(f"ratio    {ratio:.2f} (goal: at most 1.5)")
    return int(ratio > 1.5)


def _trivial_application(directory: Path) -> list[str]:
    """An application that composes two groups and prints the result."""
    for group, names in (("task", ("a", "b")), ("cluster", ("c", "d"))):
        (directory / "conf" / group).mkdir(parents=True)
        for name in names:
            (directory / "conf" / group / f"{name}.yaml").write_text(f"name: {name}\n")
    (directory / "conf" / "config.yaml").write_text("defaults:\n  - task: a\n  - cluster: c\n  - _self_\n")
    (directory / "app.py").write_text(_TRIVIAL)
    return [sys.executable, "app.py", "hydra.run.dir=.", "hydra.output_subdir=null"]


def _seconds(command: Sequence[str], directory: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
