"""All measures of our own cost, one after the other: ``make bench``.

``python -m tests.benchmarks [NAME ...] [-o docs/cost.md]``: prints what each of them says, and whether its goal is met;
with ``-o`` it goes to a page, with the machine and the versions. Leave the machine alone meanwhile. Returns 1 when any
goal is missed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

_NAMES = (
    "dry_run", "submission", "sweep", "start", "growth", "failure", "restart", "watching", "checkpointing",
    "adapters", "many_nodes",
)  # fmt: skip
_HEAD = """\
# What the launcher itself costs

As `make bench` printed it; `python -m tests.benchmarks -o docs/cost.md` wrote this page. Each figure is a ratio of two
things that took turns in one run, or a time with its spread: machines differ, and these are noisy. The private cluster
is a real Slurm, all of whose nodes share the machine's processors.

"""


def main(arguments: list[str]) -> int:
    """Run them, and print or write what they say."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure our own cost.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_NAMES))
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    names, failed = options.names or _NAMES, 0
    parts = [_HEAD, f"{_machine()}\n"]
    for name in names:
        command = [sys.executable, "-m", f"tests.benchmarks.{name}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed |= done.returncode
        verdict = "" if done.returncode == 0 else "\nThe goal is missed.\n"
        parts.append(f"## {_title(name)}\n\n```\n{done.stdout.rstrip()}\n```\n{verdict}")
        print(f"{name}: {'goal met' if done.returncode == 0 else 'goal MISSED'}\n{done.stdout}", flush=True)
    if options.output:
        options.output.write_text("\n".join(parts))
    return int(failed != 0)


def _title(name: str) -> str:
    """The first sentence of the benchmark's own description."""
    doc = importlib.import_module(f"tests.benchmarks.{name}").__doc__ or name
    return " ".join(doc.partition("\n\n")[0].split()).partition(": ``make bench``")[0].rstrip(".")


def _machine() -> str:
    """What it was measured on, and with which versions."""
    model = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    machine = f"{os.cpu_count()} processors ({model}), {memory:.0f} GiB, no GPU"
    versions = f"Python {platform.python_version()}, torch {version('torch')}, {_said('slurmctld', '-V')}"
    return (
        f"{time.strftime('%Y-%m-%d')}, {machine}; {versions}; commit {_said('git', 'describe', '--always', '--dirty')}."
    )


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _cpuinfo() -> list[str]:
    return Path("/proc/cpuinfo").read_text().splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
