"""The command that a node agent runs: torchrun, once per node. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.plan.plan import Plan

RANK_SHELL = 'exec "$@" >>"$LAUNCHER_LOG_DIR/rank-$RANK.log" 2>&1'
"""Starts a rank with both of its streams, in order, in one file named by its global rank.

torchrun's own redirection opens a file per stream and per local rank, and truncates it.
"""


def torchrun_command(
    plan: Plan, node: int | str, master_addr: str, master_port: int | str, log_dir: str, nodes: int | None = None
) -> list[str]:
    """torchrun on one node, with the static rendezvous: RANK = node * nproc_per_node + LOCAL_RANK.

    `node` counts the nodes that train, `nodes` is how many they are, by default as many as planned.

    Under c10d rendezvous torchrun would sort the nodes by host name as text, and node10 would come before node2.
    `launcher.train.torchrun` is torchrun with a report of every rank's true end.
    """
    return [
        plan.python, "-u", "-m", "launcher.train.torchrun",
        f"--nnodes={nodes or plan.resources.nodes}",
        f"--nproc-per-node={plan.resources.nproc_per_node}",
        f"--node-rank={node}",
        f"--master-addr={master_addr}",
        f"--master-port={master_port}",
        f"--rdzv-id={plan.run_id}",
        "--max-restarts=0",
        f"--log-dir={log_dir}",
        "--no-python",
        *rank_command(plan.entry),
    ]  # fmt: skip


def rank_command(entry: Sequence[str]) -> list[str]:
    """The entry as one rank runs it. The entry's words are arguments of the shell, never text of its script."""
    return ["sh", "-c", RANK_SHELL, "sh", *entry]
