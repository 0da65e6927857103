"""What preflight and watching add to the start of a run on many nodes. The goal is less than 2 s on 64.

``python -m tests.benchmarks.many_nodes [NODES] [ROUNDS] [--torchrun]``: a private Slurm cluster of so many nodes, all
on this machine, and runs of one trivial rank per node, in turns with preflight and samples and without. Counted is the
time from the first agent's start until the last rank has started. It also counts the samples: one small write per node
and period at most.

A stand-in for torchrun starts the ranks: 64 of the real one, which each import torch, would keep a small machine busy
for minutes, in which nothing else could be seen. With ``--torchrun`` it is the real one. Agents, Slurm, preflight and
samples are the real ones. On a real cluster each node looks at itself with its own processors; here all of them share
those of this machine, so that what is measured is the worst case.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launcher.records.files import read_json_lines
from tests.sandbox import Sandbox
from tests.test_slurm import launch_on

_GOAL_S = 2.0
_LARGEST_LINE = 1024
"""Bytes of a sample without GPUs."""
_LASTS_S = 12
"""A rank: two periods of samples, and some."""
_RANK = f"import time\nprint('started', time.time(), flush=True)\ntime.sleep({_LASTS_S})\n"
_TORCHRUN = """\
#!/bin/sh
# Starts one rank as torchrun would, and reports its end; everything else is for the real interpreter.
case "$*" in *launcher.train.torchrun*) ;; *) exec {python} "$@" ;; esac
while [ "$1" != --no-python ]; do
  case "$1" in --node-rank=*) export RANK="${{1#*=}}" LOCAL_RANK=0 ;; esac
  shift
done
shift
"$@" >>"$LAUNCHER_LOG_DIR/rank-$RANK.log" 2>&1
code=$?
echo "{{\\"code\\": $code, \\"failures\\": [], \\"message\\": \\"\\"}}" >"$LAUNCHER_TORCHRUN_OUTCOME"
exit $code
"""
_WATCHED, _BARE = "watched", "bare"
_OFF = ("watch.preflight=off", "watch.sample_seconds=0")


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns 1 when the goal is missed."""
    numbers = [int(word) for word in arguments if word.isdigit()]
    nodes, rounds = [*numbers, *(64, 3)[len(numbers) :]]
    starts: dict[str, list[float]] = {_BARE: [], _WATCHED: []}
    writes: list[float] = []
    with (
        Sandbox.start(nodes=nodes, gpus=0, accounting=False) as cluster,
        tempfile.TemporaryDirectory() as directory,
    ):
        words = _words(Path(directory), nodes, "--torchrun" in arguments)
        for _ in range(rounds):
            for kind, more in ((_BARE, _OFF), (_WATCHED, ())):
                attempt = _run(cluster, Path(directory), (*words, *more))
                starts[kind].append(_start_of(attempt))
                writes += [_most_writes(attempt)] if kind == _WATCHED else []
    added = statistics.median(starts[_WATCHED]) - statistics.median(starts[_BARE])
    for kind, times in starts.items():
        print(f"{kind:<8} median {statistics.median(times):.2f} s, from {min(times):.2f} to {max(times):.2f}")
    print(f"added on {nodes} nodes: {added:+.2f} s (goal: less than {_GOAL_S:g})")
    print(f"writes per node and period: at most {max(writes):.2f} (goal: 1)")
    return int(added >= _GOAL_S or max(writes) > 1)


def _words(directory: Path, nodes: int, real: bool) -> tuple[str, ...]:
    (directory / "rank.py").write_text(_RANK)
    stand_in = directory / "python"
    stand_in.write_text(_TORCHRUN.format(python=sys.executable))
    stand_in.chmod(0o755)
    return (
        "task=script", "library=torchrun", "task.path=rank.py", "cluster=sandbox", f"cluster.nodes={nodes}",
        "cluster.gpus_per_node=0", "cluster.nproc_per_node=1", "snapshot=off", "wait=true",
        *(() if real else (f"cluster.python={stand_in}",)),
    )  # fmt: skip


def _run(cluster: Sandbox, directory: Path, words: Sequence[str]) -> Path:
    """The directory of the one attempt of a run that went well."""
    done = launch_on(cluster, directory, *words, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return max(directory.glob("runs/*/attempts/000"), key=lambda path: path.stat().st_mtime)


def _start_of(attempt: Path) -> float:
    """Seconds from node 0's first words to the start of the last rank."""
    began = next(read_json_lines(attempt / "events.jsonl"))["time"]
    words = [log.read_text().split() for log in attempt.glob("rank-*.log")]
    nodes = len(json.loads((attempt / "rendezvous.json").read_text())["hosts"])
    times = [float(said[said.index("started") + 1]) for said in words]
    if len(times) != nodes:
        raise RuntimeError(f"{len(times)} of {nodes} ranks have started")
    return max(times) - began


def _most_writes(attempt: Path) -> float:
    """Of any node, how many samples it wrote in a period."""
    plan = json.loads((attempt.parents[1] / "plan.json").read_text())
    period_s = plan["budgets"]["sample_s"]
    rates: list[float] = []
    for file in attempt.glob("samples-*.jsonl"):
        lines = file.read_bytes().splitlines()
        if max(map(len, lines)) > _LARGEST_LINE:
            raise RuntimeError(f"a sample of {max(map(len, lines))} bytes in {file.name}")
        times = [json.loads(line)["time"] for line in lines]
        if len(times) > 1:
            rates.append(period_s * (len(times) - 1) / (times[-1] - times[0]))
    return round(max(rates), 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
