"""A plan as text: what a dry run prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from launcher.config.units import format_memory, format_time
from launcher.errors import SchedulerError
from launcher.plan.command import torchrun_command
from launcher.plan.container import srun_args, wrap
from launcher.plan.plan import Plan
from launcher.slurm import commands
from launcher.slurm.directives import as_header


def describe(plan: Plan) -> str:
    """The whole plan, for a person. Asks the controller, where there is one, whether the job could start."""
    return "\n".join(
        [
            f"run        {plan.run_id}",
            f"directory  {plan.run_dir}",
            *_code(plan),
            *_resources(plan),
            *_hosts(plan),
            *_container(plan),
            *_notices(plan),
            *_slurm(plan),
            "",
            "on every node",
            f"  {_node_command(plan)}",
            "",
            "environment of the ranks",
            *_environment(plan),
            "",
            "nothing was started (dry run)",
        ]
    )


def _code(plan: Plan) -> Iterator[str]:
    yield f"starts in  {plan.workdir}"
    if plan.snapshot:
        yield f"snapshot   a copy of {plan.repository}, taken when the run is submitted; what git ignores is linked"


def _resources(plan: Plan) -> Iterator[str]:
    asked = plan.resources
    parts = [f"{asked.gpus_per_node} GPUs" if asked.gpus_per_node else "no GPUs"]
    if asked.cpus_per_node:
        parts.append(f"{asked.cpus_per_node} CPUs")
    if asked.memory_mb_per_node:
        parts.append(format_memory(asked.memory_mb_per_node))
    count = str(asked.nodes) if asked.enough == asked.nodes else f"{asked.enough} to {asked.nodes}"
    spare = f", and {asked.spare_nodes} more to replace one that is lost" if asked.spare_nodes else ""
    yield f"nodes      {count} × ({', '.join(parts)}){spare}"
    yield f"ranks      {asked.nodes} × {asked.nproc_per_node} = {asked.world_size} (world size)"
    yield f"start      {plan.start.method}: {plan.start.reason}"
    if plan.training["task"]["env"]:
        num_envs = plan.training["num_envs"]
        yield f"envs       {asked.world_size} × {num_envs} = {asked.world_size * num_envs}"
        yield f"iterations {plan.training['max_iterations']} in all"
    if plan.training.get("batch"):
        yield f"batch      {_batch(**plan.training['batch'])}"
    if asked.time_s:
        yield f"time limit {format_time(asked.time_s)}"
    if plan.resume:
        yield f"resume     {plan.resume}"


def _notices(plan: Plan) -> Iterator[str]:
    if (told := plan.notices) is None:
        return
    who = [f"the webhook in ${told.webhook}" if told.webhook else "", shlex.join(told.command)]
    yield f"tells      {' and '.join(filter(None, who))} when the run has {'failed' if told.failures_only else 'ended'}"


def _hosts(plan: Plan) -> Iterator[str]:
    if plan.hosts:
        yield f"hosts      {', '.join(plan.hosts)}"


def _container(plan: Plan) -> Iterator[str]:
    if plan.container is None:
        return
    what = "agents and ranks" if srun_args(plan) else "the ranks"
    yield f"container  {plan.container.image} ({plan.container.runtime}: {what})"
    for mount in plan.container.mounts:
        yield f"  {mount.source}{'' if mount.source == mount.target else f' at {mount.target}'}"
    if plan.container.env:
        yield f"  with the job's {', '.join(plan.container.env)}"


def _batch(per_device: int | None, ranks: int, accumulation: int | None) -> str:
    """The effective batch, samples per optimizer step; what only the script knows has no number."""
    first = "the script's" if per_device is None else per_device
    last = "the script's" if accumulation is None else accumulation
    total = "" if per_device is None or accumulation is None else f" = {per_device * ranks * accumulation}"
    return f"{first} × {ranks} × {last}{total} (per device × ranks × accumulation)"


def _slurm(plan: Plan) -> Iterator[str]:
    if plan.scheduler != "slurm":
        return
    yield from ("", "sbatch header", *(f"  {line}" for line in as_header(plan.directives)))
    yield from (f"  {line}" for line in plan.setup)
    yield from (f"  srun {shlex.quote(argument)}" for argument in srun_args(plan))
    if commands.missing_command() is None:
        try:
            said = commands.test_only(plan.directives)
        except SchedulerError as error:
            said = str(error)
        yield from ("", f"Slurm says  {said}")


def _node_command(plan: Plan) -> str:
    several = plan.resources.nodes > 1
    master = "<first node>" if several else "127.0.0.1"
    words = torchrun_command(plan, "<node>" if several else 0, master, "<free port>", "<attempt>")
    return " ".join(map(_with_blanks_to_fill, wrap(plan, words, ["<variables>"])))


def _with_blanks_to_fill(word: str) -> str:
    return word if "<" in word and " " not in word.split("<", maxsplit=1)[0] else shlex.quote(word)


def _environment(plan: Plan) -> Iterator[str]:
    yield from (f"  {line}" for line in plan.describe_environment())
    yield "  and what only the node knows: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun),"
    scratch = ", LAUNCHER_SCRATCH" if plan.scratch else ""
    yield f"  LAUNCHER_ATTEMPT, LAUNCHER_RESUME, LAUNCHER_STOP_FILE{scratch} (node agent)"
