"""``profile``: a cluster profile, commented and ready to use, written by asking Slurm."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.cli.parser import Parser
from launcher.config.complaints import nearest
from launcher.config.units import format_memory, format_time, parse_time
from launcher.errors import SchedulerError, UserError
from launcher.slurm import commands
from launcher.slurm.inventory import Node, Partition

_A_DAY_S = 24 * 3600


def profile(argv: Sequence[str]) -> int:
    """``profile [--partition P] [--probe]``: print the profile of a partition."""
    parser = Parser(
        prog="python -m launcher profile", description="Write a cluster profile by asking Slurm.",
        epilog="python -m launcher profile > DIR/cluster/NAME.yaml",
    )  # fmt: skip
    parser.add_argument("--partition", metavar="P", help="default: the default one, or the one with most GPUs")
    parser.add_argument("--probe", action="store_true", help="ask a node for its interfaces, by a job of a minute")
    options = parser.parse_args(argv)
    partitions, nodes, config = commands.inventory()
    chosen = choose(partitions, nodes, options.partition)
    gpu = any(node.gpus for node in nodes if chosen.name in node.partitions)
    found = commands.ask_node(chosen.name, gpu=gpu) if options.probe else None
    print(profile_of(chosen, partitions, nodes, config, found))
    return 0


def profile_of(
    chosen: Partition, partitions: Sequence[Partition], nodes: Sequence[Node], config: dict[str, str],
    found: dict[str, Any] | None,
) -> str:  # fmt: skip
    """The profile's text. `found` is what a node says of itself, None where none was asked."""
    members = [node for node in nodes if chosen.name in node.partitions]
    others = [partition for partition in partitions if partition.name != chosen.name]
    return "\n".join([*_head(chosen, others, nodes, config), *_body(chosen, members, config), *_network(found)])


def choose(partitions: Sequence[Partition], nodes: Sequence[Node], wish: str | None) -> Partition:
    """The partition that is wished for; else the default one, unless GPUs are only to be had elsewhere.

    Raises:
        UserError: there is none of that name.
        SchedulerError: there is none at all.
    """
    by_name = {partition.name: partition for partition in partitions}
    if wish is not None and wish not in by_name:
        raise UserError(f"there is no partition '{wish}'{nearest(wish, by_name)} (there are: {', '.join(by_name)})")
    if not partitions:
        raise SchedulerError("this cluster shows you no partition: give --partition, or ask its administrators")
    gpus = {name: sum(node.gpu_count for node in nodes if name in node.partitions) for name in by_name}
    best = max(partitions, key=lambda one: (one.up, gpus[one.name] > 0, one.default, gpus[one.name]))
    return best if wish is None else by_name[wish]


def _head(
    chosen: Partition, others: Sequence[Partition], nodes: Sequence[Node], config: dict[str, str]
) -> Iterator[str]:
    name = _name(chosen, config)
    yield f"# Partition {chosen.name} of the cluster {config.get('ClusterName', '')}, as Slurm describes it."
    yield f"# Save it as DIR/cluster/{name}.yaml, then: python -m launcher --config-dir DIR cluster={name} …"
    for partition in others:
        members = [node for node in nodes if partition.name in node.partitions]
        yield f"# Another partition: {partition.name}, {_kinds(members)}, time limit {partition.max_time.lower()}"
    if "MaxArraySize" in config:
        yield f"# The largest index of a job array here is {int(config['MaxArraySize']) - 1} (MaxArraySize)."


def _body(chosen: Partition, members: Sequence[Node], config: dict[str, str]) -> Iterator[str]:
    yield f"name: {_quoted(_name(chosen, config))}"
    yield "scheduler: slurm"
    yield f"partition: {_quoted(chosen.name)}"
    yield "# account: NAME            # sacctmgr show associations user=$USER format=account,partition,qos"
    if members:
        yield from _shares(members)
    if config.get("SelectType", "select/cons_tres") != "select/cons_tres":
        yield "gpu_request: gres         # --gpus-per-node needs select/cons_tres, and this cluster has another"
    yield f"time: {_quoted(_time(chosen))}  # the limit here is {chosen.max_time.lower()}; shorter jobs start sooner"
    if chosen.whole_nodes:
        yield "# This partition hands out whole nodes, whatever a job asks for."


def _shares(members: Sequence[Node]) -> Iterator[str]:
    """The node's share of each rank, by the most common kind of node; those with GPUs before those without."""
    kinds = Counter((node.gpus, node.cpus, node.memory_mb) for node in members)
    gpus, cpus, memory_mb = max(kinds, key=lambda kind: (bool(kind[0]), kinds[kind]))
    count = gpus[0].count if gpus else 0
    yield f"# nodes: {_kinds(members)}"
    yield f"gpus_per_node: {count}"
    if gpus and gpus[0].kind:
        yield f"gpu_type: {_quoted(gpus[0].kind)}"
    if not gpus:
        yield "device: cpu"
    yield f"cpus_per_gpu: {max(1, cpus // max(1, count))}"
    yield f"mem_per_gpu: {_memory(memory_mb // max(1, count))}"


def _kinds(members: Sequence[Node]) -> str:
    kinds = Counter((" + ".join(map(str, node.gpus)) or "no GPUs", node.cpus, node.memory_mb) for node in members)
    texts = (f"{n} × ({gpus}, {cpus} CPUs, {_memory(mb)})" for (gpus, cpus, mb), n in kinds.most_common())
    return ", ".join(texts) or "no nodes"


def _network(found: dict[str, Any] | None) -> Iterator[str]:
    """Nothing is set: NCCL finds its way on most clusters. What could be set stands there, for those where not."""
    if found is None:
        yield "# Interfaces of a node: python -m launcher profile --probe"
        return
    yield f"# Of {found['node']}, for the case that ranks of different nodes do not find each other:"
    yield from (f"# network_interface: {_quoted(name)}" for name in found["interfaces"])
    if found["adapters"]:
        yield f"# ib_hca: {_quoted(','.join(found['adapters']))}"


def _name(chosen: Partition, config: dict[str, str]) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", f"{config.get('ClusterName', 'slurm')}-{chosen.name}")


def _time(chosen: Partition) -> str:
    """The partition's limit, and not more than a day."""
    limit = _A_DAY_S if chosen.max_time == "UNLIMITED" else parse_time(chosen.max_time)
    return format_time(min(limit, _A_DAY_S))


def _memory(mebibytes: int) -> str:
    """Whole gibibytes, rounded down, where it is that much: no node has more than it has."""
    return format_memory(mebibytes // 1024 * 1024 if mebibytes >= 1024 else mebibytes)


def _quoted(text: str) -> str:
    """A string of YAML, quoted where a bare one would be something else."""
    return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", text) and text.lower() not in _WORDS else json.dumps(text)


_WORDS = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
