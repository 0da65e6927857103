"""What needs torch: CUDA in a process of the ranks' interpreter, and an all-reduce over all ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from launcher.node.environment import outside_of_runs, prepare
from launcher.node.place import Place
from launcher.node.preflight.topic import NOT_CHECKED
from launcher.node.probe import QUIETLY, Prepared, Probe, World, backend_of, probe_command
from launcher.plan.plan import Plan
from launcher.records.preflight import CUDA, RANKS, TORCH, Check, Finding, NodeReport
from launcher.records.probe import FAILED, OK, RankSeen
from launcher.records.rundir import Attempt

CHECKS = (TORCH, CUDA)


async def all_reduce_in_run(plan: Plan, place: Place, attempt: Attempt, world: World) -> list[RankSeen]:
    """The ranks of an all-reduce on this node, started as the run's own ranks will be."""
    command = probe_command(plan, backend_of(plan))

    def prepared(ours: Mapping[str, str]) -> Prepared:
        quietly = {name: value for name, value in QUIETLY.items() if name not in plan.values()}
        return prepare(plan, attempt, place.host, command, {**quietly, **ours})

    return await Probe(world, place.host, plan.budgets.probe_s).run(prepared, plan.workdir)


async def all_reduce_outside(plan: Plan, place: Place, world: World) -> list[RankSeen]:
    """The same where there is no run yet."""
    command, environment = probe_command(plan, backend_of(plan)), outside_of_runs(plan, place.host)
    probe = Probe(world, place.host, plan.budgets.probe_s)
    return await probe.run(lambda ours: (command, {**QUIETLY, **environment, **ours}), plan.submit_dir)


def world_of(plan: Plan, node: int, nodes: int, master_addr: str, master_port: int) -> World:
    """The process group, and the part in it of one of so many nodes."""
    each = plan.resources.nproc_per_node
    address = master_addr if nodes > 1 else "127.0.0.1"
    return World(nodes * each, range(node * each, (node + 1) * each), address, master_port)


def with_ranks(report: NodeReport, ranks: Sequence[RankSeen], began: float) -> NodeReport:
    """The report with what was seen of this node's ranks; `began` is of the monotonic clock."""
    seconds = round(report.seconds + time.monotonic() - began, 3)
    facts = {**report.facts, RANKS: {"ranks": [seen.to_message() for seen in ranks]}}
    return replace(report, facts=facts, findings=(*report.findings, *_judge(ranks)), seconds=seconds)


def without_ranks(report: NodeReport, why: str) -> NodeReport:
    """The report, with the word that there was no all-reduce."""
    return replace(report, findings=(*report.findings, NOT_CHECKED.finding(report.host, f"{RANKS}: {why}")))


def all_well(ranks: Sequence[RankSeen]) -> bool:
    """Whether the ranks of this node may start."""
    return all(seen.outcome == OK for seen in ranks)


def _judge(ranks: Sequence[RankSeen]) -> Iterator[Finding]:
    """What this node can say alone; who is behind whom shows only when all nodes have told."""
    checks: dict[str, Check] = {"python": TORCH, "torch": TORCH, "device": CUDA}
    bad = [seen for seen in ranks if seen.outcome == FAILED and seen.phase in checks]
    for phase, seen in {seen.phase: seen for seen in reversed(bad)}.items():  # of each the first rank
        yield checks[phase].finding(seen.host, f"rank {seen.rank}: {seen.error}")
