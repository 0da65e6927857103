"""Records as runs leave them, written by hand: what a test of reading and reporting needs within milliseconds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.records.files import write_json
from launcher.records.measured import summary
from launcher.records.result import Result

HOSTS = ["gpu01", "gpu02"]
BEGAN = 1_790_000_000.0
"""Seconds since the epoch: when the run was submitted; its first attempt begins 60 s later."""
PER_ATTEMPT = 20
LOSS = "loss_value"


def make_run(path: Path, *, hosts: Sequence[str] = HOSTS, name: str = "ant-rsl_rl", iterations: int = 2 * PER_ATTEMPT,
             config: str = "task:\n  name: ant\n", top: float = 400.0, attempts: int = 2) -> Path:  # fmt: skip
    """A run of two attempts: a node was lost in the first, the second ended well."""
    path.mkdir(parents=True)
    training = {"library": "rsl_rl", "seed": 7}
    resources = {"nodes": len(hosts), "nproc_per_node": 2, "gpus_per_node": 2}
    write_json(path / "plan.json", {"name": name, "resources": resources, "training": training, "scheduler": "slurm"})
    write_json(path / "submission.json", {"scheduler": "slurm", "job_id": "4711", "time": BEGAN})
    write_json(path / "provenance.json", {"user": "ada", "host": "login1", "command": ["python", "-m", "launcher"]})
    (path / "config.yaml").write_text(config)
    _write_lines(path / "metrics.jsonl", (_metrics(number, top, iterations) for number in range(1, iterations + 1)))
    for number in range(attempts):
        _make_attempt(path, number, hosts, last=number == attempts - 1)
    return path


def make_open_run(path: Path, job_id: str, *, attempts: int = 1, verdict: str = "", age_s: float = 5.0) -> Path:
    """A run without a result, which Slurm has been asked to start; its newest sample and metrics are so old.

    A `verdict` is the cause that ended its newest attempt, after which it is to go on.
    """
    path.mkdir(parents=True)
    training = {"library": "rsl_rl", "seed": 7, "max_iterations": 500, "task": {"env": "Ant-v5"}}
    now = time.time()
    budgets = {"sample_s": 5.0}
    resources = {"nodes": 2, "nproc_per_node": 2, "gpus_per_node": 2}
    plan = {"name": "ant", "resources": resources, "training": training, "budgets": budgets, "scheduler": "slurm"}
    _write(path / "plan.json", plan)
    _write(path / "submission.json", {"scheduler": "slurm", "job_id": job_id, "time": now})
    for number in range(attempts):
        attempt = path / "attempts" / f"{number:03}"
        attempt.mkdir(parents=True)
        _write(attempt / "rendezvous.json", {"hosts": HOSTS, "nodes": [0, 1], "resumed_at": 0, "time": now - 60})
        for node in range(2):
            _write_lines(attempt / f"samples-{node}.jsonl", [{**_sample(now - age_s, node), **_OF_A_SAMPLE}])
        _write_lines(path / "metrics.jsonl", [{**_metrics(120, 400.0, 500), "time": now - age_s}])
        if verdict:
            _write(attempt / "verdict.json", {"outcome": "stopped", "cause": verdict, "then": "requeued"})
    return path


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """Without waiting for the disk, as there may be hundreds of them."""
    path.write_text(json.dumps(record))


_OF_A_SAMPLE = {"gpus_age_s": 0.1, "memory_limit_mb": 8192}


def _metrics(number: int, top: float, of: int) -> dict[str, Any]:
    attempt = int(number > PER_ATTEMPT)
    loss = float("nan") if number == 3 else 1 / number
    return {
        "iteration": number,
        "time": BEGAN + 60 + attempt * 40 + number,
        "return_mean": top * number / of,
        "fps": 1000 + number,
        LOSS: loss,
    }


def _make_attempt(run: Path, number: int, hosts: Sequence[str], *, last: bool) -> None:
    path = run / "attempts" / f"{number:03}"
    path.mkdir(parents=True)
    began = BEGAN + 60 + number * 60
    write_json(path / "rendezvous.json", {"hosts": list(hosts), "resumed_at": number * PER_ATTEMPT, "time": began})
    metrics = {"return_mean": 400.0}
    done = (number + 1) * PER_ATTEMPT
    facts: dict[str, Any] = {"iteration": done, "resumed_at": number * PER_ATTEMPT, "seconds": 25.0, "metrics": metrics}
    if last:
        idle = {"check": "gpu-idle", "host": hosts[0], "severity": "warning", "message": "GPU 1 has had nothing to do"}
        verdict = Result("completed", "max_iterations", then="ended", warnings=[idle], **facts)
        verdict.write(run / "result.json")
    else:
        lost, log = hosts[-1], str(path / "rank-2.log")
        verdict = Result(
            "failed", "node_lost", f"lost contact with {lost}", host=lost, then="requeued", log=log, **facts
        )
        (path / "rank-2.log").write_text("the last words of rank 2\n")
    verdict.write(path / "verdict.json")
    end = {"time": began + 25, "event": "verdict", "outcome": verdict.outcome, "cause": verdict.cause}
    loss = [] if last else [{"time": began + 24, "event": "lost", "node": len(hosts) - 1, "host": hosts[-1]}]
    _write_lines(path / "events.jsonl", [{"time": began, "event": "attempt", "hosts": list(hosts)}, *loss, end])
    for node in range(len(hosts)):
        _write_lines(path / f"samples-{node}.jsonl", (_sample(began + second, node) for second in range(5, 25, 5)))


def _sample(at: float, node: int) -> dict[str, Any]:
    gpu = {"memory_used_mb": 2048, "memory_total_mb": 40960, "power_w": 300.0}
    gpus = [{"utilisation": 0.5 + 0.1 * index, **gpu} for index in range(2)]
    return {"time": at, "cpu": 0.25 * (node + 1), "memory_used_mb": 4096, "disk_free_mb": 10240, "gpus": gpus}


def make_sweep(path: Path, count: int, metric: str = "return_mean") -> Path:
    """A sweep over a learning rate, of one-attempt runs; the higher its number, the higher the return of a run."""
    runs: dict[str, list[str]] = {}
    for number in range(count):
        run = make_run(path / f"{path.name}-{number:04}", hosts=["gpu01"], attempts=1, top=100.0 * (number + 1),
                       iterations=PER_ATTEMPT)  # fmt: skip
        (run / "provenance.json").rename(path / "provenance.json")
        runs[run.name] = ["task=ant", f"agent.algorithm.learning_rate={10.0 ** -(number % 4 + 1):g}", f"seed={number}"]
    write_json(path / "sweep.json", {"sweep": {"metric": metric}, "runs": runs})
    return path


def make_benchmark(path: Path, workload: str, ranks: int = 4, library: str = "rsl_rl") -> Path:
    """Records of a benchmark on two nodes with two ranks each; rank 3 is slow, and no other."""
    run = make_run(path, attempts=1)
    plan = json.loads((run / "plan.json").read_text())
    plan["training"] |= {"bench": {"workload": workload, "warmup": 2}, "task": {"env": "Ant-v5"}, "num_envs": 16,
                         "max_iterations": 6, "device": "cpu", "library": library}  # fmt: skip
    write_json(run / "plan.json", plan)
    if ranks:
        write_json(run / "attempts/000/timings.json", {"ranks": [_timings(rank) for rank in range(ranks)]})
    return run


def _timings(rank: int) -> dict[str, Any]:
    slow = 3.0 if rank == 3 else 1.0
    series = {"iteration_s": [4.0, 6.0], "collect_s": [slow, slow], "learn_s": [3.0, 4.0], "sync_s": [1.0, 2.0]}
    phases = {"python_imports": 2.0, "process_group": 0.5, "env_creation": slow, "agent_creation": 0.1, "first_step": 1}
    machine = {"hostname": "gpu01", "gpu_devices": [], "cpu_name": None, "cpu_count": 8, "ram_gb": 64.0}
    return {
        "rank": rank, "host": "gpu01" if rank < 2 else "gpu02", "began": BEGAN + 63.0, "phases": phases,
        "measured": summary(16 * 24, series), "machine": machine if rank % 2 == 0 else None,
    }  # fmt: skip


def ended_bundle(
    ranks: int, per_rank: int, fps: float, nodes: int = 1, sync: float = 0.1, status: str = "completed"
) -> Any:
    """What scaling looks at of a bundle."""
    hardware = _A100 if status == "completed" else None  # its ranks tell that at their end
    times = {"iteration_s": 1.0, "collect_s": 0.4, "learn_s": 0.3 + sync, "sync_s": sync}
    extra = {"world_size": ranks, "num_envs_per_rank": per_rank, "num_nodes": nodes, "cause": "oom", "message": "full",
             "versions": {"launcher": "0.1.0"}, "per_rank": [{"rank": 0, "host": "gpu01", **times}],
             "nodes": [{"host": f"gpu{node:02}", "hardware": hardware} for node in range(nodes)]}  # fmt: skip
    runtime = {"total_fps": {"mean": fps}, "iteration_time_s": {"mean": 1.0}} if status == "completed" else None
    run = {"run_id": f"{ranks}-{fps}", "status": status, "start_time_utc": "2026-11-30T19:35:33.758+00:00"}
    versions = {"torch": "2.13.0", "git_commit": "4c86c2300ff", "git_dirty": True}
    return {"run": run, "versions": versions, "runtime": runtime, "extra": extra}


_A100 = {"gpu_devices": [{"name": "NVIDIA A100-SXM4-80GB"}] * 2, "cpu_name": "AMD EPYC"}


def make_scaling(path: Path, sizes: Sequence[int] = (1, 2, 4), failed: bool = False) -> Path:
    """What ``bench scaling`` leaves of two repetitions: from two ranks on, half of the time goes into synchronising."""
    asked = {"task": "ant", "library": "rsl_rl", "cluster": "a100x2", "num_envs": 64, "world_sizes": list(sizes),
             "scaling": ["weak", "strong"], "repetitions": 2, "runs": 4 * len(sizes) - 2}  # fmt: skip
    runs: dict[str, list[str]] = {}
    for rate in (950, 1050):
        for ranks, per_rank in dict.fromkeys((one, each) for one in sizes for each in (64, 64 // one)):
            run = make_run(path / f"{path.name}-{len(runs):04}", hosts=["gpu01"], attempts=1, iterations=PER_ATTEMPT)
            sync = 0.0 if ranks == 1 else 0.5
            status = "crashed" if failed and ranks == sizes[-1] else "completed"
            bundle = ended_bundle(ranks, per_rank, rate * (1 + ranks) / 2, -(-ranks // 2), sync, status)
            write_json(run / "benchmark.json", bundle)
            runs[run.name] = ["task=ant", f"cluster.nproc_per_node={min(ranks, 2)}", f"num_envs={per_rank}"]
    write_json(path / "sweep.json", {"sweep": {"metric": "return_mean"}, "runs": runs})
    write_json(path / "scaling.json", {"asked": asked})
    return path


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
