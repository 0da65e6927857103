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

from launcher.node.place import Place, find_place, is_this_host
from launcher.node.preflight.run import BUDGET_S, preflight
from launcher.node.preflight.wanted import wanted
from launcher.plan.plan import Plan
from launcher.records.preflight import as_lines


def main(arguments: list[str]) -> int:
    """Look at this node and print the report; findings are no failure of this program."""
    plan = Plan.from_json(sys.stdin.read())
    place = _place(plan)
    report = asyncio.run(preflight(wanted(plan, place), float(arguments[0]) if arguments else BUDGET_S))
    print("\n".join(as_lines(place.node, report)), flush=True)
    return 0


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
