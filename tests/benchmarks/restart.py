"""Time from a killed rank to the next iteration, as a ratio to a cold start of the same job. The goal is at most 1.3.

``python -m tests.benchmarks.restart [ROUNDS]``: cartpole on two nodes of a private Slurm cluster, two ranks each. In
each round a job starts, and two times a rank of it is killed; the medians are compared. The cold start of a job is
counted from the moment when Slurm starts its batch script: the queue is no part of it, srun and the agents are.

Under gloo the other ranks fail at once. Under NCCL they wait for the lost one, deaf to signals: ranks that were stopped
with SIGSTOP stand for these.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from launcher.node.processes import environment
from tests.interruptions import first_iteration_of, goes_on_after
from tests.sandbox import Sandbox
from tests.survival import Disturbed
from tests.test_local import wait_until
from tests.test_slurm import launch_on

_GOAL = 1.3
_ITERATIONS = 5
"""Between a start and a kill: a program that dies twice at the same iteration is given up."""
_JOB = (
    "task=cartpole", "library=rsl_rl", "task.solved=null", "num_envs=8", "agent.num_steps_per_env=8",
    "max_iterations=100000", "checkpoint.every=3", "cluster=sandbox", "cluster.nodes=2", "cluster.gpus_per_node=1",
    "cluster.nproc_per_node=2",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Measure and print; returns 1 when the goal is missed."""
    rounds = int(arguments[0]) if arguments else 3
    with Sandbox.start(nodes=2) as cluster, tempfile.TemporaryDirectory() as directory:
        times = [_round(cluster, Path(directory) / str(number)) for number in range(rounds)]
    cold, failing, deaf = (list(column) for column in zip(*times))
    print(f"cold start of the job: {_shown(cold)}")
    return int(max(_ratio("fail at once", failing, cold), _ratio("wait, deaf to signals", deaf, cold)) > _GOAL)


def _shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"


def _ratio(name: str, restart: list[float], cold: list[float]) -> float:
    ratio = statistics.median(restart) / statistics.median(cold)
    print(f"a rank is killed, the others {name}: {_shown(restart)}, ratio {ratio:.2f} (goal: at most {_GOAL})")
    return ratio


def _round(cluster: Sandbox, directory: Path) -> tuple[float, float, float]:
    """Seconds to the next iteration: from the job's start, and from either way of a kill."""
    directory.mkdir()
    launch_on(cluster, directory, *_JOB).check_returncode()
    (path,) = directory.glob("runs/*")
    run = Disturbed(cluster, path).reach(_ITERATIONS)
    cold = _first_iteration(run) - _began(run.job_id)
    kills = [_seconds_after_kill(run, deaf) for deaf in (False, True)]
    cluster.run(["scancel", run.job_id], check=True)
    wait_until(lambda: not run.processes())
    return cold, kills[0], kills[1]


def _seconds_after_kill(run: Disturbed, deaf: bool) -> float:
    run.reach(run.iterations()[-1] + _ITERATIONS)
    ranks = {env["RANK"]: pid for pid, env in run.processes(agents=False).items() if "RANK" in env}
    victim = ranks.pop("3")
    for pid in ranks.values():
        os.kill(pid, signal.SIGSTOP if deaf else 0)
    before, killed = run.newest, time.time()
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: goes_on_after(run, before), 120)
    return _first_iteration(run) - killed


def _first_iteration(run: Disturbed) -> float:
    found = first_iteration_of(run, run.newest)
    assert found is not None
    return found


def _began(job_id: str) -> float:
    """When Slurm started the job's batch script, in Unix time: Slurm's own StartTime has whole seconds only."""
    (pid,) = (pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_script(pid, job_id))
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])  # since the machine's start
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _is_script(pid: int, job_id: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"slurm_script" in command and environment(pid).get("SLURM_JOB_ID") == job_id
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
