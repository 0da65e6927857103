"""``python -m launcher.node.preflight [BUDGET_S]``: the preflight of a plan that stands on standard input.

Prints the report as one JSON object, in pieces short enough for srun, which cuts longer lines where nodes print at the
same time: each line is the node's number and a piece.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import sys
import time

from launcher.node import ports
from launcher.node.place import Place, find_place, is_this_host
from launcher.node.preflight import full
from launcher.node.preflight.run import BUDGET_S, preflight
from launcher.node.preflight.wanted import wanted
from launcher.plan.plan import Plan
from launcher.records.preflight import NodeReport, as_lines


def main(arguments: list[str]) -> int:
    """Look at this node and print the report; findings are no failure of this program."""
    plan = Plan.from_json(sys.stdin.read())
    place = _place(plan)
    report = asyncio.run(_look(plan, place, float(arguments[0]) if arguments else BUDGET_S))
    print("\n".join(as_lines(place.node, report)), flush=True)
    return 0


async def _look(plan: Plan, place: Place, budget_s: float) -> NodeReport:
    report = await preflight(wanted(plan, place), budget_s)
    if not plan.budgets.probe_s:
        return report
    if plan.container is not None:
        return full.without_ranks(report, "the ranks' torch is in an image: watch.preflight=full looks there in a run")
    nodes = 1 if plan.scheduler == "none" else len(place.hosts)
    key = ".".join(os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")) if nodes > 1 else plan.run_id
    world = full.world_of(plan, place.node if nodes > 1 else 0, nodes, place.hosts[0], ports.candidates(key)[0])
    began = time.monotonic()
    return full.with_ranks(report, await full.all_reduce_outside(plan, place, world), began)


def _place(plan: Plan) -> Place:
    """Where no scheduler starts this, it may be any of the hosts, or a machine that is none of them."""
    if plan.scheduler != "none":
        return find_place(plan, os.environ)
    node = next((node for node, host in enumerate(plan.hosts) if is_this_host(host)), None)
    here = Place(0, (socket.gethostname(),), None)
    return here if node is None else dataclasses.replace(here, node=node, hosts=plan.hosts)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # not to wait for a look that hangs
