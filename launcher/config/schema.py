"""What may stand in a configuration: every key, its type, its default and its meaning.

The dataclasses are registered with Hydra's ConfigStore as the base of ``conf/config.yaml``, so an unknown key or a
value of the wrong type fails while the configuration is composed, before anything else happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, List, Optional

from launcher.config.units import parse_range


class Scheduler(Enum):
    """Who starts the run; under ``none`` a person does, with one command on every host."""

    local = "local"
    slurm = "slurm"
    none = "none"


class Device(Enum):
    """What the ranks compute on; ``auto`` is CUDA where the ranks see a GPU."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class GpuRequest(Enum):
    """How GPUs are asked for: ``--gpus-per-node`` or, on sites that know only that, ``--gres``."""

    gpus_per_node = "gpus_per_node"
    gres = "gres"


class StartMethod(Enum):
    """How a node starts its ranks; ``auto`` forks them where that is known to be safe."""

    auto = "auto"
    fork = "fork"
    spawn = "spawn"


class ContainerRuntime(Enum):
    """What starts the image: pyxis as part of srun, agent and ranks in it; the others on the node, the ranks in it."""

    pyxis = "pyxis"
    apptainer = "apptainer"
    charliecloud = "charliecloud"


class AccelerateMode(Enum):
    """How Accelerate spreads a model over the ranks."""

    ddp = "ddp"
    fsdp = "fsdp"
    fsdp2 = "fsdp2"
    zero1 = "zero1"
    zero2 = "zero2"
    zero3 = "zero3"


class MixedPrecision(Enum):
    """What Accelerate computes in; in a YAML file write ``"no"`` with quotes, for YAML takes a bare no for false."""

    no = "no"
    fp16 = "fp16"
    bf16 = "bf16"
    fp8 = "fp8"


Vectorization = Enum("Vectorization", [("auto", "auto"), ("sync", "sync"), ("async", "async"), ("envpool", "envpool")])
"""How the environments of a rank run: one after the other, each in a process, in envpool's threads; ``auto`` is the
environment's native way where it has one, else ``sync``. Made this way because ``async`` is a word of Python's."""


class Snapshot(Enum):
    """Whether a job runs from a copy of the code; in a YAML file write ``"off"`` with quotes, as ``"no"`` above."""

    git = "git"
    off = "off"


class Preflight(Enum):
    """What is looked at on every node before the ranks start; in a YAML file write ``"off"`` with quotes."""

    basic = "basic"
    full = "full"
    off = "off"


class Registry(Enum):
    """Who defines the environment that a task names."""

    gymnasium = "gymnasium"
    isaaclab = "isaaclab"
    mjlab = "mjlab"


class RlLibrary(Enum):
    """Which library learns under Isaac Lab; its name of it."""

    rsl_rl = "rsl_rl"
    rl_games = "rl_games"
    skrl = "skrl"


class NotifyWhen(Enum):
    """Of which ends of runs somebody is told: of all, or of failures only."""

    end = "end"
    failure = "failure"


class WebhookStyle(Enum):
    """What is sent to a webhook: all facts as JSON, or a text as Slack and those like it take it."""

    json = "json"
    slack = "slack"


class Console(Enum):
    """What a run in the foreground shows: the progress of the training alone, or rank 0's output with it."""

    progress = "progress"
    log = "log"


@dataclass
class Solved:
    """A metric and the value at which the training may end early."""

    metric: str = "return_mean"  # of the iteration's record
    threshold: float = 0.0  # from here on it is solved, and the training ends


@dataclass
class Task:
    """What is learned: a gymnasium environment, or a script or module of the user's."""

    name: str = ""  # part of a run's name
    env: Optional[str] = None  # the id of a gymnasium environment, or package.module:function of yours
    registry: Registry = Registry.gymnasium  # who defines env
    packages: List[str] = field(default_factory=list)  # import names of what env needs, looked for before the start
    env_args: Dict[str, Any] = field(default_factory=dict)  # for whatever makes the environment
    vectorization: Vectorization = Vectorization.auto  # in turn, in processes, in envpool's threads; auto: its own way
    reward_scale: float = 1.0  # what the learner gets is the reward times this; records have it unscaled
    max_iterations: int = 1000  # unless the top level says it
    num_envs: int = 64  # per rank, unless the top level says it
    solved: Optional[Solved] = None  # may end the training early; null: it goes on to max_iterations
    record: bool = False  # a video of the trained policy, policy.mp4 in the run directory
    path: Optional[str] = None  # a script of yours
    module: Optional[str] = None  # or a module, as of `python -m`
    args: Any = None  # of the script: words in a list, or {key: value} for --key value
    global_batch_size: Optional[int] = None  # samples per optimizer step: finds the gradient accumulation


@dataclass
class Accelerate:
    """What decides Accelerate's environment; null leaves a choice to `config_file`, else to Accelerate's default."""

    mode: Optional[AccelerateMode] = None  # default: the file's, else ddp
    mixed_precision: Optional[MixedPrecision] = None  # default: the file's, else none
    gradient_accumulation_steps: Optional[int] = None  # default: the file's, else 1
    config_file: Optional[str] = None  # as `accelerate config` writes it; its topology, ports and GPU ids do not count


@dataclass
class Library:
    """How it is learned: the module that runs in every rank, or none for the task's own script."""

    name: str = ""  # part of a run's name
    packages: List[str] = field(default_factory=list)  # modules that the ranks import, by their first name
    module: Optional[str] = None  # that trains in every rank; null: the task's own script
    registry: Registry = Registry.gymnasium  # whose tasks it trains
    rl_library: Optional[RlLibrary] = None  # of Isaac Lab: what it learns with
    runner: Optional[str] = None  # a module that runs the task's script in every rank
    prepare: Optional[str] = None  # a module whose prepare() adds to the ranks' environment on every node
    accelerate: Accelerate = field(default_factory=Accelerate)
    preload: List[str] = field(default_factory=list)  # modules that a node imports once, before it forks its ranks
    spawn: Optional[str] = None  # why its ranks must not be forked
    env: Dict[str, str] = field(default_factory=dict)  # variables of the ranks
    console: Console = Console.log  # what a run in the foreground shows

    @property
    def uses_accelerate(self) -> bool:
        """Whether the settings of `accelerate` have any effect."""
        return self.prepare == "launcher.train.accelerate_env"


@dataclass
class Container:
    """The image that the ranks run in; off without a runtime. Nothing of the host reaches them but what is named."""

    runtime: Optional[ContainerRuntime] = None  # what starts the image
    image: Optional[str] = None  # as the runtime takes it: a file, a directory, docker://NAME:TAG, REGISTRY#NAME:TAG
    mounts: List[str] = field(default_factory=list)  # SRC, SRC:DST, SRC:DST:ro; the run's directories are there
    env: List[str] = field(default_factory=list)  # names of the job's own variables to hand on; WANDB_* is a pattern
    mount_home: bool = False  # your home directory, which brings packages that you installed for yourself
    args: List[str] = field(default_factory=list)  # more options of the runtime; with pyxis of srun


@dataclass
class Cluster:
    """Where it runs. One file per cluster; ``null`` leaves a choice to Slurm."""

    name: str = ""  # the profile's, in records
    scheduler: Scheduler = Scheduler.local  # who starts the run; none: you do, with one command per host
    nodes: Any = 1  # a number, or a range such as 2-4: starts with what it gets, goes on with what is left
    spare_nodes: int = 0  # more nodes in the allocation, to take the place of one that is lost
    hosts: Any = None  # without a scheduler: a list of hosts or Slurm's short form gpu[1-4], node 0 first
    gpus_per_node: int = 0  # asked for, and used
    gpu_type: Optional[str] = None  # as Slurm knows it (`sinfo -o %G`)
    gpu_request: GpuRequest = GpuRequest.gpus_per_node  # as --gpus-per-node or --gres
    nproc_per_node: Optional[int] = None  # ranks per node; default: one per GPU, or one
    device: Device = Device.auto  # what the ranks compute on; auto: CUDA where they see a GPU
    start: StartMethod = StartMethod.auto  # of the ranks: forked from one process with torch imported, or spawned
    cpus_per_gpu: Optional[int] = None  # CPUs per rank; where there are no GPUs a rank counts as one
    mem_per_gpu: Optional[str] = None  # memory per rank, likewise
    time: Optional[str] = None  # limit of a job: 30 (minutes), 8:00:00, 2-12 (days-hours)
    signal_lead: int = 120  # seconds between the warning signal and the time limit
    partition: Optional[str] = None  # --partition
    account: Optional[str] = None  # --account
    qos: Optional[str] = None  # --qos
    constraint: Optional[str] = None  # --constraint
    reservation: Optional[str] = None  # --reservation
    nodelist: Optional[str] = None  # nodes that have to be among them
    exclude: Optional[str] = None  # nodes not to use
    dependency: Optional[str] = None  # --dependency, such as afterok:123
    extra_directives: Dict[str, Any] = field(default_factory=dict)  # more options of sbatch, by their long names
    skip_directives: List[str] = field(default_factory=list)  # options that this site refuses
    srun_args: List[str] = field(default_factory=list)  # more options of srun
    modules: List[str] = field(default_factory=list)  # loaded before the setup lines
    setup: List[str] = field(default_factory=list)  # lines of shell in the batch script, before anything else
    container: Container = field(default_factory=Container)
    conda: Optional[str] = None  # an environment's name or directory, activated after the setup lines
    venv: Optional[str] = None  # the directory of a virtual environment (python -m venv, uv), likewise
    python: Optional[str] = None  # the ranks' interpreter; default: that of conda, venv or image, else the one here
    scratch: Optional[str] = None  # a directory on every node, $NAMEs allowed; ranks see theirs as LAUNCHER_SCRATCH
    network_interface: Optional[str] = None  # exact name; brings the entry socket_interface of the catalogue
    ib_hca: Optional[str] = None  # exact names, comma-separated, :PORT allowed; brings the entry ib_hca
    env: Dict[str, str] = field(default_factory=dict)  # variables of the ranks
    nccl: List[str] = field(default_factory=list)  # entries of the catalogue, conf/nccl

    @property
    def ranks_per_node(self) -> int:
        """One per GPU, or one, unless it is said."""
        return self.nproc_per_node or max(1, self.gpus_per_node)

    @property
    def node_range(self) -> range:
        """How many nodes may train.

        Raises:
            UserError: `nodes` is neither a number nor a range.
        """
        return parse_range(self.nodes)

    @property
    def most_nodes(self) -> int:
        return self.node_range[-1]

    @property
    def elastic(self) -> bool:
        """Whether fewer nodes than the most are enough."""
        return len(self.node_range) > 1

    @property
    def ranks(self) -> int:
        """In all, on as many nodes as there may be."""
        return self.most_nodes * self.ranks_per_node


@dataclass
class Workaround:
    """One entry of the NCCL catalogue, ``conf/nccl/NAME.yaml``."""

    symptom: str = ""
    match: List[str] = field(default_factory=list)  # regular expressions of real error texts, blanks as one blank
    env: Dict[str, str] = field(default_factory=dict)
    log_files: Dict[str, str] = field(default_factory=dict)  # variables that name a file of the attempt; NCCL's %h, %p
    cost: str = ""
    source: str = ""
    conflicts: List[str] = field(default_factory=list)
    hosts: Optional[str] = None  # a Slurm node list: set on these nodes only
    bundle: List[str] = field(default_factory=list)  # the entries that this one stands for; it sets nothing itself


@dataclass
class Checkpoint:
    """When the state of a training is saved, and how much of it is kept."""

    every: Optional[int] = 20  # iterations; null leaves it to the minutes, and to the end of the training
    minutes: Optional[float] = None  # whichever of the two is due first
    keep: int = 3  # the last ones
    best: Optional[str] = "return_mean"  # and the best one by this metric; -loss_value: by its smallest value


@dataclass
class Retry:
    """Which ends of an attempt another one follows, and how often: a number, or unlimited."""

    preempted: Any = "unlimited"  # a job with more urgent work took its nodes
    time_limit: Any = "unlimited"  # the job's time was over
    node_fail: Any = 5  # a node was lost, or unfit
    crash: Any = 2  # never after a crash at the same iteration as the one before
    hang: Any = 2  # nothing moved any more
    in_job: bool = True  # in the same allocation, where that is possible, instead of back in the queue
    without_progress: int = 3  # so many attempts in a row without progress end the run, whatever their budget
    avoid_node: Optional[str] = "1-0"  # how long a node that failed is not used again, in Slurm's notation of time


@dataclass
class Watch:
    """How long the node agents wait for each other and for the ranks, and what they look at."""

    rendezvous: int = 300  # seconds until a node that has not come counts as missing
    stop_grace: int = 30  # seconds between asking the ranks to stop and killing them
    preflight: Preflight = Preflight.basic  # of the nodes; full: with torch, over all ranks
    preflight_seconds: int = 10  # for all checks of a node together
    sample_seconds: float = 5.0  # between two samples of a node; 0: none, and nothing odd is looked for in them
    hang_floor: Optional[int] = 60  # seconds without progress before a hang is suspected; null: nobody watches
    hang_ceiling: int = 1800  # it is suspected after 5 times the longest pause so far, but not later than this
    hang_first: int = 600  # nor sooner than this, until the run is under way
    hang_end: Optional[int] = 1800  # seconds without progress, at least, until a hung attempt is ended; null: never
    probe_seconds: int = 120  # with preflight=full: for torch to start on all nodes, and all ranks to sum numbers


@dataclass
class Wandb:
    """Weights & Biases; off without a project. The key comes from the environment, or from `wandb login`."""

    project: Optional[str] = None  # turns it on
    entity: Optional[str] = None  # whose project it is
    mode: str = "online"  # online, offline, disabled


@dataclass
class Mlflow:
    """MLflow; off without a tracking URI (a server's address, or a file)."""

    uri: Optional[str] = None  # turns it on
    experiment: str = "launcher"  # the runs are in it


@dataclass
class Tracking:
    """Where metrics go besides metrics.jsonl and TensorBoard: one tracked run, whatever the ranks and attempts."""

    wandb: Wandb = field(default_factory=Wandb)
    mlflow: Mlflow = field(default_factory=Mlflow)


@dataclass
class Notify:
    """Who is told when a run has ended for good; nobody, unless it is said."""

    when: NotifyWhen = NotifyWhen.end  # of every end, or of failures only
    mail: Optional[str] = None  # an address, to which Slurm itself writes
    webhook: Optional[str] = None  # the NAME of the environment variable that holds the address, which is a secret
    style: WebhookStyle = WebhookStyle.json  # all facts, or a text as Slack, Mattermost and Discord take it
    command: List[str] = field(default_factory=list)  # words, no shell; gets the facts as JSON on standard input


@dataclass
class Sweep:
    """How the runs of a sweep (-m) are spread out."""

    parallel: Optional[int] = None  # runs at a time; default: as many as Slurm, or this machine's devices, allow
    pack: int = 1  # one-GPU runs per allocation, for sites that hand out whole nodes
    metric: str = "return_mean"  # of result.json: what a sweeper such as Optuna's gets back


class Workload(Enum):
    """What a benchmark measures: the start of the ranks, stepping alone, or synchronised training."""

    startup = "startup"
    runtime = "runtime"
    training = "training"


class Scaling(Enum):
    """What stays the same while ranks are added: the environments of each, or those of all together."""

    weak = "weak"
    strong = "strong"


@dataclass
class Bench:
    """A run that is a benchmark; without a workload it is none."""

    workload: Optional[Workload] = None  # startup, runtime or training; null: an ordinary run
    steps: int = 1000  # of each environment, with workload=runtime
    warmup: Optional[int] = None  # steps, with workload=training iterations, left out; default: 50 steps, 2 iterations
    world_sizes: List[int] = field(default_factory=lambda: [1, 2, 4])  # of `bench scaling`: numbers of ranks
    scaling: List[Scaling] = field(default_factory=lambda: [Scaling.weak, Scaling.strong])  # what stays the same
    repetitions: int = 3  # of each number of ranks


@dataclass
class Config:
    """The whole configuration of a run."""

    task: Task = field(default_factory=Task)
    library: Library = field(default_factory=Library)
    cluster: Cluster = field(default_factory=Cluster)
    nccl: Dict[str, Workaround] = field(default_factory=dict)  # chosen of the catalogue: nccl=[+ib_off]
    agent: Dict[str, Any] = field(default_factory=dict)  # hyperparameters, in the library's own words
    name: Optional[str] = None  # the job's name; default: task-library
    seed: int = 1  # each rank's own is this plus its number
    max_iterations: Optional[int] = None  # the TOTAL, resumed or not; default: the task's
    num_envs: Optional[int] = None  # per rank; default: the task's
    runs_dir: str = "runs"  # where the runs' directories are, seen from here
    snapshot: Optional[Snapshot] = None  # run from a copy of the code; default: git for jobs from a git repository
    resume: Optional[str] = None  # latest, a run, or a checkpoint's directory
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    retry: Retry = field(default_factory=Retry)
    watch: Watch = field(default_factory=Watch)
    tracking: Tracking = field(default_factory=Tracking)
    notify: Notify = field(default_factory=Notify)
    sweep: Sweep = field(default_factory=Sweep)
    bench: Bench = field(default_factory=Bench)
    wait: bool = False  # follow a job, and end with its exit code
    dry_run: bool = False  # show what would happen, and start nothing
