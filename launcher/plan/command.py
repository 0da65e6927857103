"""The command that a node agent runs: torchrun, once per node. Standard library only."""

from __future__ import annotations

from launcher.plan.plan import Plan


def torchrun_command(
    plan: Plan, node: int | str, master_addr: str, master_port: int | str, log_dir: str, nodes: int | None = None
) -> list[str]:
    """torchrun on one node, with the static rendezvous: RANK = node * nproc_per_node + LOCAL_RANK.

    `node` counts the nodes that train, `nodes` is how many they are, by default as many as planned.

    Under c10d rendezvous torchrun would sort the nodes by host name as text, and node10 would come before node2.
    `launcher.train.torchrun` is torchrun with a log per rank, and a report of every rank's true end.
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
        *plan.entry,
    ]  # fmt: skip
