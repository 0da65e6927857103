"""From a configuration to a plan: a pure function of it, of the place, and of the user's script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from launcher.config import schema as config_schema
from launcher.config.batch import batch_of
from launcher.config.bench import units, warmup
from launcher.config.complaints import nearest
from launcher.config.container import parse_mount, require_mountable
from launcher.config.hosts import expand_hosts
from launcher.config.schema import Accelerate, Cluster, Config, GpuRequest, Scheduler, Workload
from launcher.config.task_args import words
from launcher.config.units import format_memory, format_time, parse_budget, parse_memory, parse_time
from launcher.errors import UserError
from launcher.plan import simulators, trl
from launcher.plan.environment import layers
from launcher.plan.notify import mail_directives, notices_of
from launcher.plan.plan import Budgets, Container, Mount, Patience, Plan, Resources, Retry
from launcher.plan.snapshot import Snapshot
from launcher.plan.start import choose


@dataclass(frozen=True)
class Here:
    """What the plan needs to know of the place and moment of the submission."""

    run_id: str
    runs_dir: Path
    """Absolute."""
    workdir: Path
    """Absolute: relative paths of the configuration start here."""
    python: str
    """The interpreter that submits."""
    resume: str = ""
    """The checkpoint that ``resume=`` was found to mean."""
    snapshot: Snapshot | None = None
    """The copy of the code that the ranks run from, or None where they run from the code itself."""

    def find(self, path: str) -> Path:
        """Where the ranks find a path of the configuration: in the snapshot, where that has it."""
        found = _absolute(path, self.workdir)
        return found if self.snapshot is None else self.snapshot.locate(found)

    def today(self, path: str) -> Path:
        """Where the same can be read now: the snapshot is made when the plan is."""
        found = _absolute(path, self.workdir)
        return found if self.snapshot is None else self.snapshot.today(found)

    shared: Path | None = None
    """Of a sweep: the directory of what its runs have in common, their own among it."""


def build(config: Config, here: Here) -> Plan:
    """The plan of a validated configuration.

    Raises:
        UserError: the directories of this run do not fit into its container.
    """
    resources = resources_of(config.cluster)
    run_dir = here.runs_dir / here.run_id
    container = _container(config.cluster, here, run_dir)
    python = _python(config.cluster, here)
    slurm = config.cluster.scheduler is Scheduler.slurm
    name = config.name or f"{config.task.name}-{config.library.name}"
    return Plan(
        run_id=here.run_id,
        run_dir=str(run_dir),
        name=name,
        scheduler=config.cluster.scheduler.value,
        submit_dir=str(here.workdir),
        workdir=str(here.find("")),
        python=python,
        entry=tuple(_entry(config, python, here, run_dir)),
        resources=resources,
        budgets=_budgets(config.watch),
        retry=_retry(config.retry),
        start=choose(config, here.today),
        environment=layers(config, run_dir, here.workdir, resources),
        directives=directives_of(config.cluster, resources, name, mail_directives(config.notify)) if slurm else {},
        scratch=config.cluster.scratch or "",
        setup=tuple(_setup(config.cluster, here.workdir)),
        srun_args=tuple(config.cluster.srun_args),
        hosts=tuple(expand_hosts(config.cluster.hosts)),
        container=container,
        repository="" if here.snapshot is None else str(here.snapshot.repository),
        snapshot="" if here.snapshot is None else str(here.snapshot.directory),
        import_paths=() if here.snapshot is None else here.snapshot.import_paths(),
        tracker=tuple(_tracker(config, python, run_dir)),
        resume=here.resume,
        notices=notices_of(config.notify),
        console=config.library.console.value,
        training=_training(config, here),
    )


def _budgets(watch: config_schema.Watch) -> Budgets:
    kinds = config_schema.Preflight
    return Budgets(
        rendezvous_s=watch.rendezvous,
        stop_grace_s=watch.stop_grace,
        preflight_s=0.0 if watch.preflight is kinds.off else float(watch.preflight_seconds),
        probe_s=float(watch.probe_seconds) if watch.preflight is kinds.full else 0.0,
        sample_s=watch.sample_seconds,
        hang=_patience(watch),
    )


def _patience(watch: config_schema.Watch) -> Patience | None:
    if watch.hang_floor is None:
        return None
    return Patience(watch.hang_floor, watch.hang_ceiling, watch.hang_first, watch.hang_end)


def _retry(settings: config_schema.Retry) -> Retry:
    return Retry(
        preempted=parse_budget(settings.preempted),
        time_limit=parse_budget(settings.time_limit),
        node_fail=parse_budget(settings.node_fail),
        crash=parse_budget(settings.crash),
        hang=parse_budget(settings.hang),
        in_job=settings.in_job,
        without_progress=settings.without_progress,
        avoid_node_s=None if settings.avoid_node is None else parse_time(settings.avoid_node),
    )


def resources_of(cluster: Cluster) -> Resources:
    """What a cluster profile amounts to: one rank per GPU unless it says otherwise, each with its share of the node."""
    nproc = cluster.ranks_per_node
    return Resources(
        nodes=cluster.most_nodes,
        fewest_nodes=cluster.node_range[0],
        spare_nodes=cluster.spare_nodes,
        nproc_per_node=nproc,
        gpus_per_node=cluster.gpus_per_node,
        cpus_per_node=None if cluster.cpus_per_gpu is None else cluster.cpus_per_gpu * nproc,
        memory_mb_per_node=None if cluster.mem_per_gpu is None else parse_memory(cluster.mem_per_gpu) * nproc,
        time_s=None if cluster.time is None else parse_time(cluster.time),
    )


def directives_of(
    cluster: Cluster, resources: Resources, name: str, mail: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options of sbatch: what is asked for, less what the site must not see, plus what it wants besides.

    Raises:
        UserError: a directive is to be dropped that does not exist.
    """
    chosen = {
        "job-name": job_name(name),
        "nodes": _node_count(resources),
        "no-kill": resources.outlives_a_node,
        "ntasks-per-node": 1,
        "cpus-per-task": resources.cpus_per_node,
        "mem": None if resources.memory_mb_per_node is None else format_memory(resources.memory_mb_per_node),
        "time": None if resources.time_s is None else format_time(resources.time_s),
        "signal": f"USR2@{_signal_lead(cluster, resources)}",
        "requeue": True,
        "open-mode": "append",
        **dict(_gpus(cluster)),
        **{key: getattr(cluster, key) for key in _PASSED_ON},
        **(mail or {}),
        **cluster.extra_directives,
    }
    absent = (None, False)
    for key in cluster.skip_directives:
        if key not in (known := {*chosen, "gres", "gpus-per-node"}):
            raise UserError(f"cluster.skip_directives: no directive '{key}' would be written{nearest(key, known)}")
    return {key: value for key, value in chosen.items() if value not in absent and key not in cluster.skip_directives}


def _node_count(resources: Resources) -> int | str:
    fewest, most = resources.enough + resources.spare_nodes, resources.most_allocated
    return most if fewest == most else f"{fewest}-{most}"


def job_name(name: str) -> str:
    """The name as Slurm can carry it; the whole name stands in the records.

    A line break would end the directive, a quote comes out as a backtick, and a slash would be a directory in a site's
    ``--output=%x``.
    """
    return re.sub(r"[^\w .,:;=+@()\[\]-]+", "_", name).strip(" -")[:_LONGEST_JOB_NAME] or "run"


_LONGEST_JOB_NAME = 128
_PASSED_ON = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "dependency")


def _gpus(cluster: Cluster) -> Iterator[tuple[str, str]]:
    if cluster.gpus_per_node:
        kind = f"{cluster.gpu_type}:" if cluster.gpu_type else ""
        if cluster.gpu_request is GpuRequest.gres:
            yield "gres", f"gpu:{kind}{cluster.gpus_per_node}"
        else:
            yield "gpus-per-node", f"{kind}{cluster.gpus_per_node}"


def _signal_lead(cluster: Cluster, resources: Resources) -> int:
    """At most half of a short time limit: a lead longer than the limit would warn at the start."""
    return cluster.signal_lead if resources.time_s is None else min(cluster.signal_lead, resources.time_s // 2)


def _setup(cluster: Cluster, workdir: Path) -> Iterator[str]:
    """Lines of the batch script; an environment that cannot be had ends the job, or it would train in another one."""
    if cluster.modules:
        yield f"module load {shlex.join(cluster.modules)} || exit 1"
    yield from cluster.setup
    if cluster.venv is not None:
        yield f". {shlex.quote(str(_absolute(cluster.venv, workdir) / 'bin' / 'activate'))} || exit 1"
    if cluster.conda is not None:
        hook = 'eval "$("${CONDA_EXE:-conda}" shell.posix hook)"'  # the function conda is not there in a script
        yield f"{hook} && conda activate {shlex.quote(os.path.expanduser(cluster.conda))} || exit 1"


def _python(cluster: Cluster, here: Here) -> str:
    """The ranks' interpreter. Which one a conda environment has, only the node finds out, by its PATH."""
    if cluster.python is not None:
        return cluster.python
    if cluster.venv is not None:
        return str(_absolute(cluster.venv, here.workdir) / "bin" / "python")
    if cluster.container.runtime is not None:
        return "python3"
    return here.python if cluster.conda is None else "python"


def _absolute(path: str, workdir: Path) -> Path:
    return workdir / os.path.expanduser(path)


def _container(cluster: Cluster, here: Here, run_dir: Path) -> Container | None:
    """The container, with all that the ranks need of the host at the same place as there.

    Raises:
        UserError: the runtime cannot mount a directory that they need.
    """
    settings = cluster.container
    if settings.runtime is None:
        return None
    asked = [Mount(*parse_mount(text, here.workdir)) for text in settings.mounts]
    mounts = (*_needed_mounts(here, run_dir), *asked)
    for mount in mounts:
        require_mountable(settings.runtime, mount.source, mount.target)
    return Container(
        runtime=settings.runtime.value,
        image=os.path.expanduser(settings.image or ""),
        mounts=mounts,
        env=tuple(settings.env),
        mount_home=settings.mount_home,
        args=tuple(settings.args),
    )


def _needed_mounts(here: Here, run_dir: Path) -> Iterator[Mount]:
    """The user's code, the records with a copy of this package, and the checkpoint to start from.

    A snapshot lies among the records, but links what git ignores to where it is in the repository.
    """
    records = here.shared or run_dir
    code = here.workdir if here.snapshot is None else here.snapshot.repository
    yield Mount(str(code), str(code))
    besides = {records: False, **({Path(here.resume): True} if here.resume else {})}
    for path, read_only in besides.items():
        if not path.is_relative_to(code):
            yield Mount(str(path), str(path), read_only)


def _entry(config: Config, python: str, here: Here, run_dir: Path) -> Iterator[str]:
    task, library = config.task, config.library
    if library.module is not None:
        stepping = config.bench.workload is Workload.runtime and library.registry is config_schema.Registry.gymnasium
        yield from (python, "-u", "-m", "launcher.train.stepping" if stepping else library.module)
        yield from simulators.arguments(config, run_dir.name)
        return
    runner = ("-m", library.runner) if library.runner is not None else ()
    if task.module is not None:
        yield from (python, "-u", *runner, "-m", task.module)
    elif (task.path or "").endswith(".py"):
        yield from (python, "-u", *runner, str(here.find(task.path or "")))
    else:  # no Python: its own command
        yield str(here.find(task.path or ""))
    yield from words(task.args)
    yield from trl.options(config, run_dir)


def _tracker(config: Config, python: str, run_dir: Path) -> Iterator[str]:
    tracking = config.tracking
    if tracking.wandb.project is not None or tracking.mlflow.uri is not None:
        yield from (python, "-u", "-m", "launcher.train.tracker", str(run_dir))


def _training(config: Config, here: Here) -> dict[str, Any]:
    """What the ranks need, with defaults filled in: they read JSON and know nothing of Hydra."""
    batch = batch_of(config)
    return {
        "task": _plain(asdict(config.task)),
        "library": config.library.name,
        "rl_library": None if config.library.rl_library is None else config.library.rl_library.value,
        "agent": _plain(config.agent),
        "device": config.cluster.device.value,
        "seed": config.seed,
        "max_iterations": units(config),
        "num_envs": config.num_envs or config.task.num_envs,
        "checkpoint": asdict(config.checkpoint),
        "tracking": asdict(config.tracking),
        "accelerate": _accelerate(config.library.accelerate, here) if batch else None,
        "batch": None if batch is None else asdict(batch),
        "bench": _bench(config),
    }


def _bench(config: Config) -> dict[str, Any] | None:
    workload = config.bench.workload
    return None if workload is None else {"workload": workload.value, "warmup": warmup(config)}


def _accelerate(settings: Accelerate, here: Here) -> dict[str, Any]:
    file = None if settings.config_file is None else str(here.find(settings.config_file))
    return {**_plain(asdict(settings)), "config_file": file}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
