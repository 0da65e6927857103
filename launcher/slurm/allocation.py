"""What a process learns from Slurm about the job it is part of, and what a new job must not learn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.errors import LauncherError
from launcher.slurm.hostlist import expand

_JOB_BOUND = re.compile(
    r"(SLURM|SLURMD|SRUN|PMI|PMIX|TORCHELASTIC|LAUNCHER|SUBMITIT)_\w+"
    r"|(GROUP_|ROLE_|LOCAL_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK"
)
_CLUSTER_WIDE = {"SLURM_CONF", "SLURM_CLUSTERS", "LAUNCHER_CONFIG_DIR"}
"""Not bound to a job: without SLURM_CONF sbatch may not find its controller."""


@dataclass(frozen=True)
class Allocation:
    """The job as one of its tasks sees it."""

    job_id: str
    """``1234``, or ``1234_7`` in an array: the form that names this task alone in every Slurm command."""
    node: int
    """This node's place in `hosts`."""
    hosts: tuple[str, ...]
    restarts: int
    """How often Slurm has requeued the job: part of what the nodes of one start have in common."""


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation around this process, or None outside of a job's task.

    Raises:
        LauncherError: the variables contradict each other.
    """
    if "SLURM_JOB_ID" not in environ or "SLURM_NODEID" not in environ:
        return None
    hosts = tuple(expand(environ.get("SLURM_JOB_NODELIST", "")))
    node = int(environ["SLURM_NODEID"])
    if node >= len(hosts):
        raise LauncherError(f"SLURM_NODEID is {node}, but SLURM_JOB_NODELIST names {len(hosts)} hosts")
    return Allocation(job_id(environ), node, hosts, int(environ.get("SLURM_RESTART_COUNT", "0")))


def job_id(environ: Mapping[str, str]) -> str:
    """The job's id in array form: in an array's last task SLURM_JOB_ID is the id of the whole array."""
    if "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ["SLURM_JOB_ID"]


def copies(environ: Mapping[str, str]) -> int:
    """How many tasks srun has started of which this one is the first; 1 for all others, and without srun."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "") if environ.get("SLURM_PROCID") == "0" else ""
    return int(tasks) if tasks.isdecimal() else 1


def outside_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what binds a process to its job, so that what it starts runs as from a login node.

    A job submitted from inside a job otherwise inherits SLURM_CPU_BIND, SLURM_MEM_PER_NODE, RANK and the like.
    """
    inside = "SLURM_JOB_ID" in environ
    gpus = ("CUDA_", "GPU_", "ROCR_", "ZE_")
    return {
        name: value
        for name, value in environ.items()
        if name in _CLUSTER_WIDE or not _JOB_BOUND.fullmatch(name) or (name.startswith(gpus) and not inside)
    }


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES: indices, or uuids of GPUs and MIG instances; never numbers for sure."""
    entries = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [entry for entry in entries if entry not in ("", "-1", "NoDevFiles")]
