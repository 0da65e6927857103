"""The plan of a run: plain data, JSON both ways. Standard library only, so that the node agents can read it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

_TUPLES = ("entry", "setup", "srun_args", "hosts", "import_paths", "tracker")
VERSION = 2
"""Of the form of plan.json; raised when a reader of the older form would misunderstand a newer one."""


@dataclass(frozen=True)
class Setting:
    """An environment variable of the ranks, and why it is there."""

    name: str
    value: str
    origin: str
    """The layer that set it: ``launcher``, ``library rsl_rl``, ``nccl p2p_off``, ``cluster a100x2`` …"""
    reason: str = ""
    hosts: str = ""
    """A Slurm node list: set on these nodes only; empty for all."""
    in_attempt: bool = False
    """The value is the name of a file in the attempt's directory, in NCCL's notation: ``%h`` host, ``%p`` process."""

    def value_in(self, attempt: str) -> str:
        """The value as a rank gets it in an attempt, whose directory may hold ``%`` itself."""
        return f"{attempt.replace('%', '%%')}/{self.value}" if self.in_attempt else self.value

    def describe(self) -> str:
        """The value, its origin and reason, for a person; a secret stays one."""
        secret = SECRET.search(self.name) is not None
        value = "********" if secret else shlex.quote(self.value_in("<attempt>"))
        where = f", on {self.hosts} only" if self.hosts else ""
        return f"{value}  ({self.origin}{where}{f': {self.reason}' if self.reason else ''})"


SECRET = re.compile("KEY|TOKEN(?!IZ)|SECRET|PASS(?!E)|CREDENTIAL", re.IGNORECASE)
"""Found in names whose values are kept from sight; a tokenizer and a passenger are no secrets."""


@dataclass(frozen=True)
class Resources:
    """What the run occupies, per node unless it says otherwise. None leaves the choice to Slurm."""

    nodes: int
    """How many nodes train, where all are to be had."""
    nproc_per_node: int
    """Ranks."""
    gpus_per_node: int
    cpus_per_node: int | None = None
    memory_mb_per_node: int | None = None
    """Mebibytes."""
    time_s: int | None = None
    """The time limit of the job, seconds."""
    fewest_nodes: int | None = None
    """How many nodes are enough to train; None: all of them."""
    spare_nodes: int = 0
    """Nodes of the allocation that wait to take another one's place."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node

    @property
    def enough(self) -> int:
        """The smallest number of nodes to train on."""
        return self.nodes if self.fewest_nodes is None else self.fewest_nodes

    @property
    def most_allocated(self) -> int:
        return self.nodes + self.spare_nodes

    @property
    def outlives_a_node(self) -> bool:
        """Whether the job goes on in its allocation when it loses a node."""
        return self.enough < self.most_allocated


@dataclass(frozen=True)
class Patience:
    """How long a run may stand still, seconds."""

    floor_s: float = 60.0
    """Never a suspicion before."""
    ceiling_s: float = 1800.0
    """Nor, however long its pauses are, later."""
    first_s: float = 600.0
    """But until a run is under way it has so long at least."""
    end_s: float | None = 1800.0
    """Never ended before; None: never."""


@dataclass(frozen=True)
class Budgets:
    """How long the agents wait, seconds."""

    rendezvous_s: float
    stop_grace_s: float
    failure_grace_s: float = 0.5
    """For ranks that are stopped because another one failed: they wait for it in a collective and cannot save."""
    preflight_s: float = 10.0
    """For all checks of a node together; 0 for none of them."""
    sample_s: float = 5.0
    """Between two samples of a node; 0 for none."""
    hang: Patience | None = None
    """None: nobody watches whether the run moves."""
    probe_s: float = 0.0
    """For a first all-reduce over all ranks, before they start; 0 for none."""


@dataclass(frozen=True)
class Retry:
    """Which ends of an attempt another one follows, and how often; None for as often as it happens."""

    preempted: int | None = None
    time_limit: int | None = None
    node_fail: int | None = 5
    crash: int | None = 2
    hang: int | None = 2
    in_job: bool = True
    """Start again in the same allocation, where that is possible."""
    without_progress: int = 3
    """So many attempts in a row without progress end the run, whatever they ended for."""
    avoid_node_s: int | None = 86400
    """How long a node that failed is not used again, seconds; None for no such thing."""


@dataclass(frozen=True)
class Start:
    """How a node starts its ranks."""

    method: str = "spawn"
    """``fork`` from one process that has imported torch, where the node finds nothing against it, or ``spawn``."""
    reason: str = ""
    preload: tuple[str, ...] = ()
    """Modules to import, besides torch, before the forks."""


@dataclass(frozen=True)
class Notices:
    """Who is told when the run has ended for good, by the agent of node 0."""

    failures_only: bool = False
    webhook: str = ""
    """The environment variable that holds its address; empty without one."""
    style: str = "json"
    """``json`` or ``slack``."""
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mount:
    """A file or directory of the host that the container sees."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """The image that the ranks run in, and what of the host is in it."""

    runtime: str
    """``pyxis``, ``apptainer`` or ``charliecloud``."""
    image: str
    mounts: tuple[Mount, ...] = ()
    env: tuple[str, ...] = ()
    """Names of variables of the host, as patterns; the plan's own environment goes in besides."""
    mount_home: bool = False
    args: tuple[str, ...] = ()
    """More options of the runtime's command."""


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a run starts."""

    run_id: str
    run_dir: str
    """Absolute."""
    name: str
    """The job's name."""
    scheduler: str
    """``slurm``, ``local``, or ``none``: started by hand on each of `hosts`."""
    submit_dir: str
    """The directory the run was submitted from: relative paths of the configuration start here."""
    workdir: str
    """Where the ranks start: the directory the run was submitted from, or its copy in the snapshot."""
    python: str
    """The interpreter of the ranks, and of torchrun."""
    entry: tuple[str, ...]
    """The command that torchrun starts as every rank."""
    resources: Resources
    budgets: Budgets
    retry: Retry = field(default_factory=Retry)
    start: Start = field(default_factory=Start)
    environment: tuple[Setting, ...] = ()
    """Later settings win; what the node alone knows (rank, master, attempt) is added there."""
    directives: dict[str, Any] = field(default_factory=dict)
    """Options of sbatch, by name; empty without Slurm."""
    scratch: str = ""
    """Where each node makes a directory for the ranks, with ``$NAME`` of the node's environment; empty for none."""
    setup: tuple[str, ...] = ()
    """Lines of shell that the batch script runs before anything else."""
    srun_args: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Where a run without a scheduler is to be started, node 0 first."""
    container: Container | None = None
    repository: str = ""
    """The directory whose files the snapshot holds; empty without one."""
    snapshot: str = ""
    """The copy of the code that the ranks run from; empty where they run from the code itself."""
    import_paths: tuple[str, ...] = ()
    """Directories of the snapshot in which the ranks find the user's packages, before any others."""
    tracker: tuple[str, ...] = ()
    """The command that reports the metrics to trackers, beside the ranks of node 0; empty without any."""
    resume: str = ""
    """A checkpoint of another run to start from, or empty."""
    notices: Notices | None = None
    console: str = "log"
    training: dict[str, Any] = field(default_factory=dict)
    """The configuration that the ranks read: task, library, agent, seed, iterations."""
    version: int = VERSION

    def values(self, attempt: str = "", names: Callable[[str], bool] = lambda hosts: False) -> dict[str, str]:
        """The environment after all layers, in an attempt's directory, on a node that `names` finds in host lists."""
        mine = (setting for setting in self.environment if not setting.hosts or names(setting.hosts))
        return {setting.name: setting.value_in(attempt) for setting in mine}

    def describe_environment(self) -> list[str]:
        """One line per setting that counts after all layers: of each name the last for all nodes, and what overrides
        it on some."""
        counting: dict[tuple[str, str], Setting] = {}
        for setting in self.environment:
            dead = [key for key in counting if key[0] == setting.name and setting.hosts in ("", key[1])]
            for key in dead:
                del counting[key]
            counting[setting.name, setting.hosts] = setting
        width = max((len(name) for name, _ in counting), default=0)
        return [f"{name:<{width}}  {setting.describe()}" for (name, _), setting in counting.items()]

    @property
    def one_line_name(self) -> str:
        """The name for a line of text, without line breaks and codes that a terminal would obey."""
        return "".join(character if character.isprintable() else " " for character in self.name)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a plan that :meth:`to_json` wrote.

        Raises:
            ValueError: the text is no plan, or one of another version.
        """
        data = json.loads(text)
        if data.get("version") != VERSION:
            raise ValueError(f"this is a plan of version {data.get('version')}, and version {VERSION} is read here")
        nested: dict[str, Any] = {
            "resources": Resources(**data["resources"]),
            "budgets": _budgets(data["budgets"]),
            "retry": Retry(**data["retry"]),
            "start": _start(data.get("start", {})),
            "environment": tuple(Setting(**setting) for setting in data["environment"]),
            "notices": data.get("notices") and _notices(data["notices"]),
            "container": data["container"] and _container(data["container"]),
            **{key: tuple(data[key]) for key in _TUPLES},
        }
        return Plan(**{**data, **nested})


def _budgets(data: dict[str, Any]) -> Budgets:
    hang: Any = data["hang"] and Patience(**data["hang"])
    return Budgets(**{**data, "hang": hang})


def _start(data: dict[str, Any]) -> Start:
    nested: dict[str, Any] = {"preload": tuple(data.get("preload", ()))}
    return Start(**{**data, **nested})


def _notices(data: dict[str, Any]) -> Notices:
    nested: dict[str, Any] = {"command": tuple(data["command"])}
    return Notices(**{**data, **nested})


def _container(data: dict[str, Any]) -> Container:
    nested: dict[str, Any] = {
        "mounts": tuple(Mount(**mount) for mount in data["mounts"]),
        **{key: tuple(data[key]) for key in ("env", "args")},
    }
    return Container(**{**data, **nested})
