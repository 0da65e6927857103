"""Several ranks on CPUs, for libraries that hard-code NCCL and one CUDA device per rank.

Nothing is changed where CUDA is there. All such changes to others' code are here.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist


def settle(wish: str) -> bool:
    """Decide whether this rank computes on the CPU, and if so make it possible. Before CUDA is first used.

    Args:
        wish: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        RuntimeError: CUDA is asked for, and torch sees no GPU.
    """
    if wish == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if torch.cuda.is_available():
        return False
    if wish == "cuda":
        raise RuntimeError("device=cuda, but torch sees no GPU here: use cluster.device=cpu, or a node with GPUs")
    _use_gloo()
    return True


def _use_gloo() -> None:
    original = dist.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            original("gloo", *args, **kwargs)

    dist.init_process_group = init_process_group
    torch.cuda.set_device = lambda device: None


def admit_rsl_rl() -> None:
    """Let RSL-RL's runner join the ranks although its device is no CUDA device of its own."""
    from rsl_rl.runners import OnPolicyRunner

    kind: Any = OnPolicyRunner
    original = kind._configure_multi_gpu

    def configure(runner: Any) -> None:
        device = runner.device
        runner.device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        original(runner)
        runner.device = device

    kind._configure_multi_gpu = configure


class _OnCpu(dict[str, Any]):
    """rl_games' configuration, which keeps its device whatever rl_games would like it to be."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, "cpu" if key == "device" else value)


def admit_rl_games() -> None:
    """Have rl_games compute on the CPU, and compile nothing for it."""
    from rl_games.common.a2c_common import A2CBase

    kind: Any = A2CBase
    original = kind.__init__

    def init(agent: Any, base_name: str, params: dict[str, Any]) -> None:
        params["config"] = _OnCpu(params["config"], device="cpu", device_name="cpu", torch_compile=False)
        original(agent, base_name, params)

    kind.__init__ = init


def admit_isaaclab() -> None:
    """Let Isaac Lab's distributed training, which it refuses on CPUs, use them. Before its entry points are loaded."""
    from isaaclab.app import sim_launcher  # pyright: ignore[reportMissingImports]
    from isaaclab_rl.entrypoints import common  # pyright: ignore[reportMissingImports]

    def resolve(config: Any, arguments: dict[str, Any]) -> None:
        if arguments.get("distributed"):
            config.sim.device = arguments["device"] = "cpu"

    sim_launcher._resolve_distributed_device = resolve
    common.validate_distributed_device = lambda arguments: None
