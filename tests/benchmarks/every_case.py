"""Every benchmark of a task under every RL library, with 1, 2 and 4 ranks on 1 and 2 nodes of a private Slurm cluster.

``python -m tests.benchmarks.every_case [LIBRARY ...]``: 60 jobs, some 20 minutes. Each bundle is checked against its
JSON schema and for what the case was. The figures are small on purpose, and show nothing but that there are some; not
part of ``make bench``.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from launcher.records import bundle as bundles
from tests.sandbox import Sandbox
from tests.test_slurm import launch_on

_WORKLOADS = ("startup", "runtime", "training")
_LIBRARIES = ("rsl_rl", "rl_games", "skrl", "skrl_jax")
_PLACES = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2))
"""Nodes, and ranks on each."""
_SCHEMA = json.loads(Path(bundles.__file__).with_name("bundle.schema.json").read_text())
_SMALL = ("num_envs=8", "cluster.gpus_per_node=0", "cluster.time=00:10:00")
_LENGTH = {"startup": (), "runtime": ("bench.steps=100", "bench.warmup=10"), "training": ("max_iterations=4",)}


def main(arguments: list[str]) -> int:
    """Run them all and print a line each; returns 1 when one is not as it should be."""
    failed = 0
    with Sandbox.start(nodes=2) as cluster:
        for case in itertools.product(_WORKLOADS, arguments or _LIBRARIES, _PLACES):
            with tempfile.TemporaryDirectory() as directory:
                problems = list(_problems(_run(cluster, Path(directory), *case), *case))
            failed += bool(problems)
            workload, library, (nodes, ranks) = case
            print(f"{workload:<9} {library:<9} {nodes} x {ranks}  {'; '.join(problems) or 'ok'}", flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


def _run(
    cluster: Sandbox, directory: Path, workload: str, library: str, place: tuple[int, int]
) -> subprocess.CompletedProcess[str]:
    where = (f"cluster.nodes={place[0]}", f"cluster.nproc_per_node={place[1]}", "cluster=sandbox")
    words = ("bench", workload, f"library={library}", *where, *_SMALL, *_LENGTH[workload], "--json")
    return launch_on(cluster, directory, *words, timeout=300)


def _problems(
    done: subprocess.CompletedProcess[str], workload: str, library: str, place: tuple[int, int]
) -> Iterator[str]:
    if done.returncode:
        yield f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        return
    bundle: Any = json.loads(done.stdout)
    for error in jsonschema.Draft202012Validator(_SCHEMA).iter_errors(bundle):
        yield f"schema: {error.message[:80]}"
    extra, world_size = bundle["extra"], place[0] * place[1]
    told = (extra["benchmark"], extra["library"], extra["num_nodes"], extra["world_size"], len(extra["per_rank"]))
    if told != (workload, library, place[0], world_size, world_size):
        yield f"it tells of {told}"
    if workload == "startup":
        if len(bundle["phases"]) != 6:
            yield f"phases {list(bundle['phases'])}"
    elif not bundle["runtime"]["total_fps"]["mean"] > 0:
        yield "no throughput"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
