"""What may stand in a configuration: every key, its type, its default and its meaning.

The dataclasses are registered with Hydra's ConfigStore as the base of ``conf/config.yaml``, so an unknown key or a
value of the wrong type fails while the configuration is composed, before anything else happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, List, Optional


class Scheduler(Enum):
    """Who starts the run."""

    local = "local"
    slurm = "slurm"


class Device(Enum):
    """What the ranks compute on; ``auto`` is CUDA where the ranks see a GPU."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class GpuRequest(Enum):
    """How GPUs are asked for: ``--gpus-per-node`` or, on sites that know only that, ``--gres``."""

    gpus_per_node = "gpus_per_node"
    gres = "gres"


class Console(Enum):
    """What a run in the foreground shows: the progress of the training alone, or rank 0's output with it."""

    progress = "progress"
    log = "log"


@dataclass
class Solved:
    """A metric and the value at which the training may end early."""

    metric: str = "return_mean"
    threshold: float = 0.0


@dataclass
class Task:
    """What is learned: a gymnasium environment, or a script or module of the user's."""

    name: str = ""
    env: Optional[str] = None
    env_args: Dict[str, Any] = field(default_factory=dict)
    reward_scale: float = 1.0
    max_iterations: int = 1000
    num_envs: int = 64
    solved: Optional[Solved] = None
    path: Optional[str] = None
    module: Optional[str] = None
    args: List[Any] = field(default_factory=list)


@dataclass
class Library:
    """How it is learned: the module that runs in every rank, or none for the task's own script."""

    name: str = ""
    module: Optional[str] = None
    env: Dict[str, str] = field(default_factory=dict)
    console: Console = Console.log


@dataclass
class Cluster:
    """Where it runs. One file per cluster; ``null`` leaves a choice to Slurm."""

    name: str = ""
    scheduler: Scheduler = Scheduler.local
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_type: Optional[str] = None
    gpu_request: GpuRequest = GpuRequest.gpus_per_node
    nproc_per_node: Optional[int] = None  # ranks per node; default: one per GPU, or one
    device: Device = Device.auto
    cpus_per_gpu: Optional[int] = None  # CPUs per rank; where there are no GPUs a rank counts as one
    mem_per_gpu: Optional[str] = None  # memory per rank, likewise
    time: Optional[str] = None
    signal_lead: int = 120  # seconds between the warning signal and the time limit
    partition: Optional[str] = None
    account: Optional[str] = None
    qos: Optional[str] = None
    constraint: Optional[str] = None
    reservation: Optional[str] = None
    nodelist: Optional[str] = None
    exclude: Optional[str] = None
    dependency: Optional[str] = None
    extra_directives: Dict[str, Any] = field(default_factory=dict)
    skip_directives: List[str] = field(default_factory=list)
    srun_args: List[str] = field(default_factory=list)
    modules: List[str] = field(default_factory=list)
    setup: List[str] = field(default_factory=list)
    python: Optional[str] = None  # the ranks' interpreter; default: the one that submits
    network_interface: Optional[str] = None
    env: Dict[str, str] = field(default_factory=dict)
    nccl: List[str] = field(default_factory=list)


@dataclass
class Workaround:
    """One entry of the NCCL catalogue, ``conf/nccl/NAME.yaml``."""

    symptom: str = ""
    env: Dict[str, str] = field(default_factory=dict)
    cost: str = ""
    source: str = ""
    conflicts: List[str] = field(default_factory=list)


@dataclass
class Checkpoint:
    """When the state of a training is saved, and how much of it is kept."""

    every: int = 20  # iterations
    keep: int = 3


@dataclass
class Watch:
    """How long the node agents wait for each other and for the ranks."""

    rendezvous: int = 300  # seconds until a node that has not come counts as missing
    stop_grace: int = 30  # seconds between asking the ranks to stop and killing them


@dataclass
class Config:
    """The whole configuration of a run."""

    task: Task = field(default_factory=Task)
    library: Library = field(default_factory=Library)
    cluster: Cluster = field(default_factory=Cluster)
    nccl: Dict[str, Workaround] = field(default_factory=dict)
    agent: Dict[str, Any] = field(default_factory=dict)  # hyperparameters, in the library's own words
    name: Optional[str] = None  # the job's name; default: task-library
    seed: int = 1
    max_iterations: Optional[int] = None  # the TOTAL, resumed or not; default: the task's
    num_envs: Optional[int] = None  # per rank; default: the task's
    runs_dir: str = "runs"
    resume: Optional[str] = None  # latest, a run, or a checkpoint's directory
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    watch: Watch = field(default_factory=Watch)
    wait: bool = False
    dry_run: bool = False
