"""A training that is disturbed on a real Slurm, and what there is to see of how it survived."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import only_run, result_of, script
from tests.sandbox import Sandbox
from tests.test_local import metrics_of, wait_until
from tests.test_slurm import job_of, launch_on

EVERY = 20
"""Iterations between two checkpoints."""
MORE = 30
"""Iterations that the last attempt does."""
LET = "may end"
"""With this file in the working directory the training comes to its end, whatever happens."""
TRAINING = f"""\
import os, sys, time
import torch
from launcher.train import Rank
every, last, endless = map(int, sys.argv[1:])
with Rank("cpu") as rank:
    found = rank.checkpoints.load(rank.device)
    rank.iteration = done = found[0]["iteration"] if found else 0
    if endless:
        last += done
    endless, stop = int(os.environ["LAUNCHER_ATTEMPT"]) < endless, False
    while (endless or done < last) and not stop:
        time.sleep(0.05)
        done += 1
        rank.progress(done, host=__import__("socket").gethostname())
        if endless and rank.largest([float(os.path.exists("{LET}"))])[0]:
            last, endless = done + last, False
        stop = rank.should_stop()
        if stop or done % every == 0 or (done == last and not endless):
            rank.checkpoints.save(done, {{"iteration": done}})
    rank.report("max_iterations" if done == last and not endless else "asked to stop")
"""
"""Arguments: the iterations between two checkpoints, the last iteration, and how many attempts are without an end: so
they cannot be over before the test has done something to them, however slow the machine is. If there are such ones the
second argument is how many iterations the attempt after them does. As most scripts it imports torch first, and so its
ranks are forked; with SPAWNED they are not."""
SPAWNED = "cluster.start=spawn"


def arguments(endless: int = 1) -> str:
    """Those of the training that is disturbed as often."""
    return f"task.args=[{EVERY},{MORE},{endless}]"


@dataclass
class Disturbed:
    """A run of that training."""

    cluster: Sandbox
    run: Path
    let: bool = False
    """It may come to its end from now on, whatever happens."""

    @staticmethod
    def start(
        cluster: Sandbox, workdir: Path, *words: str, endless: int = 1, text: str = TRAINING, ranks: int = 1
    ) -> Disturbed:
        """Submit it on two nodes; so many of its attempts have no end."""
        script(workdir, text)
        done = launch_on(
            cluster, workdir, "task=script", "library=torchrun", "task.path='train it.py'", "cluster=sandbox",
            "cluster.gpus_per_node=1", arguments(endless), f"cluster.nproc_per_node={ranks}",
            *([] if any(word.startswith("cluster.nodes=") for word in words) else ["cluster.nodes=2"]), *words,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        runs = next((Path(word.partition("=")[2]) for word in words if word.startswith("runs_dir=")), None)
        return Disturbed(cluster, only_run(workdir) if runs is None else next(runs.glob("*-script-*")))

    def reach(self, iteration: int) -> Disturbed:
        """Wait until so many iterations are on record."""
        wait_until(lambda: (self.run / "metrics.jsonl").exists() and self.iterations()[-1:] >= [iteration], 90)
        return self

    def let_end(self, workdir: Path) -> None:
        """Nothing more will happen to it: what goes on without an end has one now."""
        (workdir / LET).touch()
        self.let = True

    @property
    def job_id(self) -> str:
        return job_of(self.run)

    def iterations(self) -> list[int]:
        return [line["iteration"] for line in metrics_of(self.run)]

    def hosts(self) -> list[str]:
        """Of the newest attempt, in the order of the ranks."""
        return json.loads((self.newest / "rendezvous.json").read_text())["hosts"]

    @property
    def newest(self) -> Path:
        return sorted(self.run.glob("attempts/*"))[-1]

    def scontrol(self, *words: str) -> str:
        return self.cluster.run(["scontrol", *words], check=True).stdout

    def take_nodes(self, seconds: int = 3) -> None:
        """A job that goes first wants all nodes of this one."""
        command = ["sbatch", "-p", "high", "--exclusive", "-o", "/dev/null", f"-w{','.join(self.hosts())}"]
        self.cluster.run([*command, f"-N{len(self.hosts())}", "--wrap", f"sleep {seconds}"], check=True)

    def end(self, seconds: float = 120) -> dict[str, Any]:
        """Wait for the run's verdict."""
        wait_until((self.run / "result.json").exists, seconds)
        return result_of(self.run)

    def verdicts(self) -> list[dict[str, Any]]:
        """Of all attempts that have one."""
        return [json.loads(path.read_text()) for path in sorted(self.run.glob("attempts/*/verdict.json"))]

    def causes(self) -> list[str]:
        return [verdict["cause"] for verdict in self.verdicts()]

    def lost(self) -> list[int]:
        """The iterations that each attempt but the last had done in vain."""
        verdicts = self.verdicts()
        return [(one["iteration"] or 0) - after["resumed_at"] for one, after in itertools.pairwise(verdicts)]

    def pauses(self) -> list[float]:
        """Seconds without training between one attempt's end and the next one's first iteration."""
        times = [line["time"] for line in metrics_of(self.run)]
        gaps = sorted((after - before for before, after in itertools.pairwise(times)), reverse=True)
        return gaps[: len(self.verdicts()) - 1]

    def processes(self, *, agents: bool = True) -> dict[int, dict[str, str]]:
        """What runs for it on any node: process ids and environments."""
        return {pid: env for pid, words, env in _all_processes() if self._is_ours(words, env, agents)}

    def _is_ours(self, words: list[str], env: dict[str, str], agents: bool) -> bool:
        if env.get("LAUNCHER_RUN_DIR") == str(self.run):
            return True
        return agents and "launcher.node" in words and str(self.run) in words

    def kill(self, kind: str, host: str, which: signal.Signals = signal.SIGKILL) -> None:
        """Signal the ``agent``, the ``torchrun`` or the ``rank`` of a host."""
        found = [pid for pid, words, env in _all_processes() if self._is(kind, host, words, env)]
        assert found, f"no {kind} on {host}"
        for pid in found:
            os.kill(pid, which)

    def _is(self, kind: str, host: str, words: list[str], env: dict[str, str]) -> bool:
        if kind == "agent":
            return (
                env.get("SLURMD_NODENAME") == host
                and words[1:4] == ["-u", "-m", "launcher.node"]
                and (str(self.run) in words)
            )
        ours = env.get("LAUNCHER_RUN_DIR") == str(self.run) and env.get("LAUNCHER_HOST") == host
        return ours and (("LOCAL_RANK" in env) == (kind == "rank")) and (kind == "rank" or _torchrun(words))

    def assert_survived(self, last: int | None = None, seconds: float = 120) -> None:
        """It ended where its training ends, every iteration is on record once, and nothing is left.

        Args:
            last: the last iteration; default: that of the training above.
            seconds: how long to wait.
        """
        result = self.end(seconds)
        assert (result["outcome"], result["cause"]) == ("completed", "max_iterations"), result
        end = last or self.verdicts()[-1]["resumed_at"] + MORE
        assert result["iteration"] >= end if self.let else result["iteration"] == end
        assert self.iterations() == list(range(1, result["iteration"] + 1))
        wait_until(lambda: not self.processes(), 20)

    def report(self, name: str) -> None:
        """A line of docs/survival.md's table, for whoever runs the tests with -s."""
        pauses = ", ".join(f"{pause:.1f}" for pause in self.pauses())
        print(f"\nSURVIVAL | {name} | {', '.join(self.causes()[:-1])} | {self.lost()} | {pauses} s |")


def _torchrun(words: list[str]) -> bool:
    return "launcher.train.torchrun" in words and "--standby" not in words


def _all_processes() -> Iterator[tuple[int, list[str], dict[str, str]]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            yield int(entry.name), words, dict(one.split("=", 1) for one in variables if "=" in one)
