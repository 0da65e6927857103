"""The environment that `accelerate launch` would give the ranks, through Accelerate's own functions.

Accelerate's defaults in its launcher differ from those in its library, so all of the launcher's variables are taken.
`accelerate launch` itself is never run: it starts processes where Slurm has placed them already, loses signals, and
for DeepSpeed on several machines writes the whole environment, secrets included, to a file.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.commands import launch
from accelerate.utils import launch as environments

from launcher.train.here import read_plan

_OURS = {"MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"}
"""Where the ranks meet and which GPUs they have is not Accelerate's to say."""

_FLAGS = {
    "from file": list[str](),
    "ddp": [],
    "fsdp": ["--use_fsdp", "--fsdp_version=1"],
    "fsdp2": ["--use_fsdp", "--fsdp_version=2"],
    **{f"zero{stage}": ["--use_deepspeed", f"--zero_stage={stage}"] for stage in (1, 2, 3)},
}


def prepare() -> None:
    """Add Accelerate's variables to the environment of this process, and so of the ranks that it starts.

    Raises:
        RuntimeError: FSDP is asked for, and there is no GPU here; or what `config_file` says makes no sense.
    """
    plan = read_plan()
    planned = {setting["name"] for setting in plan["environment"]}
    for name in [name for name in os.environ if name.startswith("ACCELERATE_USE_") and name not in planned]:
        del os.environ[name]  # of the user's shell: not what was planned
    settings = plan["training"]["accelerate"]
    cpu = not uses_gpu(plan["training"]["device"])
    ranks = plan["resources"]["nodes"] * plan["resources"]["nproc_per_node"]
    for name, value in environment(settings, ranks, cpu).items():
        if name not in planned:
            os.environ[name] = value
            print(f"accelerate: {name}={value}", flush=True)


def uses_gpu(device: str) -> bool:
    """Whether the ranks on this node compute on a GPU.

    Raises:
        RuntimeError: CUDA is asked for, and torch sees none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("device=cuda, but torch sees no GPU here: use cluster.device=cpu, or a node with GPUs")
    return device != "cpu" and torch.cuda.is_available()


def environment(settings: Mapping[str, Any], ranks: int, cpu: bool) -> dict[str, str]:
    """Accelerate's variables for one rank of `ranks`, without topology, ports and GPU ids.

    Args:
        settings: ``library.accelerate`` of the configuration.
        ranks: of the whole run.
        cpu: whether they compute on the CPU.

    Raises:
        RuntimeError: FSDP on a CPU, which Accelerate would silently replace by DDP.
    """
    args, config, precision_from_file = _parse(_flags(settings, ranks, cpu))
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = _fields(config, precision_from_file)
        made = environments.prepare_deepspeed_cmd_env(args)[1]
    elif cpu:
        if args.use_fsdp:
            raise RuntimeError("FSDP needs GPUs, and torch sees none here: use library.accelerate.mode=ddp or zero3")
        args.cpu = True
        made = environments.prepare_simple_launcher_cmd_env(args)[1]
    elif args.multi_gpu or args.use_fsdp or args.use_megatron_lm:
        made = environments.prepare_multi_gpu_env(args)
    else:
        made = environments.prepare_simple_launcher_cmd_env(args)[1]
    new = {name: value for name, value in made.items() if os.environ.get(name) != value and name not in _OURS}
    return {**new, **dict(_deepspeed(cpu))} if args.use_deepspeed else new


def _flags(settings: Mapping[str, Any], ranks: int, cpu: bool) -> Iterator[str]:
    """What `accelerate launch` would be told. The port is one that it finds free: nobody will listen there."""
    yield from (f"--num_processes={ranks}", "--num_machines=1", "--machine_rank=0", "--main_process_port=0")
    mode = settings["mode"] or ("from file" if settings["config_file"] else "ddp")
    yield from ("--gpu_ids=all", *_FLAGS[mode])
    for name in ("mixed_precision", "gradient_accumulation_steps", "config_file"):
        if settings[name] is not None:
            yield f"--{name}={settings[name]}"
    if mode == "ddp" and not cpu and ranks > 1:
        yield "--multi_gpu"


def _parse(flags: Iterator[str]) -> tuple[argparse.Namespace, Any, bool]:
    launch.default_config_file = os.devnull  # one in the user's home, which nobody named, must not decide
    args = launch.launch_command_parser().parse_args([*flags, "script.py"])
    return launch._validate_launch_command(args)


def _fields(config: Any, precision_from_file: bool) -> str:
    fields = list(config.deepspeed_config) if config else []
    return ",".join([*fields, "mixed_precision"] if precision_from_file else fields)


def _deepspeed(cpu: bool) -> Iterator[tuple[str, str]]:
    """DeepSpeed compiles its operators at first use: on a disk of the node, or nodes would wait for each other."""
    kind = f"py{platform.python_version()}-torch{torch.__version__}"
    yield "TORCH_EXTENSIONS_DIR", os.path.join(tempfile.gettempdir(), f"torch_extensions-{os.getuid()}", kind)
    if cpu:  # ACCELERATE_USE_CPU would silently turn DeepSpeed off
        yield "DS_ACCELERATOR", "cpu"
        yield "CUDA_VISIBLE_DEVICES", ""
