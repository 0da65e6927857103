"""``python -m launcher.train.probe``: one rank of an all-reduce test, placed by torchrun's variables, or alone.

It goes through phases, and says each one as a line of JSON before it begins, so that whoever has to kill it knows where
it hung. The last line is the result: what every all-reduce took, and whether its sum was right. Bandwidths are those of
nccl-tests (doc/PERFORMANCE.md there): the algorithm's is bytes / seconds; the bus's is that times 2 (n - 1) / n for n
ranks, which does not depend on n and can be compared with what the hardware should give. Both in 10^9 bytes a second.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_MIB = 2**20
_LARGEST = {"cuda": 64 * _MIB, "cpu": 8 * _MIB}
"""Bytes: enough to see the bandwidth rather than the latency, and little enough to take no time."""
_REPEATS = 5
_NO_TIMEOUT = timedelta(hours=1)
"""Whoever started this has a deadline, and says more about who hung than torch does."""


def main(arguments: list[str]) -> int:
    """Run the test as one rank; returns 0, or 1 where it failed or a sum was wrong."""
    parser = argparse.ArgumentParser(prog="python -m launcher.train.probe", description=__doc__)
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto: nccl with a GPU")
    parser.add_argument("--largest", type=int, metavar="BYTES", help="default: 64 MiB on a GPU, 8 MiB on a CPU")
    options = parser.parse_args(arguments)
    faulthandler.register(signal.SIGUSR2, all_threads=False)  # who is about to kill it asks where it hangs
    phase, wrong = "torch", 0
    try:
        for phase, facts in _phases(options.backend, options.largest):
            _say(phase, **facts)
            wrong = facts.get("wrong", 0)
    except Exception as error:
        _say("failed", during=phase, error=" ".join(f"{type(error).__name__}: {error}".split()))
        return 1
    return int(wrong > 0)


def _phases(backend: str, largest: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each phase, when it begins, and what is known by then."""
    yield "torch", {}
    import torch

    torch.set_num_threads(1)
    wants_gpu = _wants_gpu(backend)
    yield "device", {"torch": torch.__version__}
    device = _device(wants_gpu)
    backend = "nccl" if wants_gpu else "gloo"
    yield "rendezvous", {"device": device.type, "backend": backend}
    world_size = _join(backend)
    yield "all_reduce", {}
    began = time.perf_counter()
    wrong = _wrong(2, device, world_size)
    first_s = time.perf_counter() - began
    yield "measure", {}
    sizes, more_wrong = _measure(largest or _LARGEST[device.type], device, world_size)
    yield "done", {"sizes": sizes, "wrong": wrong + more_wrong, "first_s": round(first_s, 4)}
    if world_size > 1:
        with contextlib.suppress(Exception):  # only not to leave while others still read what this rank has sent
            torch.distributed.barrier()


def _wants_gpu(backend: str) -> bool:
    """Whether the ranks compute on GPUs.

    Raises:
        RuntimeError: they should, and torch was built without CUDA.
    """
    import torch

    if backend == "auto":
        return torch.cuda.is_available()
    if backend == "nccl" and not torch.distributed.is_nccl_available():
        raise RuntimeError(f"torch {torch.__version__} was built without CUDA and NCCL")
    return backend == "nccl"


def _device(gpu: bool) -> torch.device:
    """The device of this rank, after a computation on it.

    Raises:
        RuntimeError: there is no such GPU, or it does not compute.
    """
    import torch

    if not gpu:
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        limited = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        raise RuntimeError(f"torch sees {count} GPUs{limited}, and local rank {local_rank} needs one more")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    if torch.ones(1024, device=device).add(1).sum().item() != 2048:
        raise RuntimeError(f"{torch.cuda.get_device_name(device)} adds up wrongly")
    return device


def _join(backend: str) -> int:
    """Join the process group, if there is more than one rank; returns their number."""
    import torch.distributed as dist

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group(backend, timeout=_NO_TIMEOUT)
    return world_size


def _wrong(count: int, device: torch.device, world_size: int) -> int:
    """Sum so many numbers over all ranks; returns how many sums are wrong. Small integers, which floats add exactly."""
    import torch

    pattern = torch.arange(count, device=device, dtype=torch.float32).remainder_(16)
    numbers = pattern + int(os.environ.get("RANK", "0"))
    _all_reduce(numbers, world_size)
    right = pattern * world_size + world_size * (world_size - 1) / 2
    return int((numbers != right).sum().item())


def _measure(largest: int, device: torch.device, world_size: int) -> tuple[list[dict[str, float]], int]:
    """Time and bandwidths at growing sizes, and how many sums were wrong."""
    import torch

    measured: list[dict[str, float]] = []
    wrong = 0
    for size in _sizes(largest):
        wrong += _wrong(size // 4, device, world_size)
        numbers = torch.zeros(size // 4, device=device)
        seconds = min(_time(numbers, world_size) for _ in range(_REPEATS))
        measured.append({"bytes": size, "seconds": seconds, **bandwidths(size, seconds, world_size)})
    return measured, wrong


def _sizes(largest: int) -> Iterator[int]:
    size = 8
    while size < largest:
        yield size
        size *= 512
    yield largest


def bandwidths(size: int, seconds: float, world_size: int) -> dict[str, float]:
    """The algorithm's and the bus's bandwidth of an all-reduce, in 10^9 bytes a second, as nccl-tests defines them."""
    algorithm = size / seconds / 1e9
    return {"algbw": algorithm, "busbw": algorithm * 2 * (world_size - 1) / world_size}


def _time(numbers: torch.Tensor, world_size: int) -> float:
    """Seconds of one all-reduce."""
    import torch

    on_gpu = numbers.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    _all_reduce(numbers, world_size)
    if on_gpu:
        torch.cuda.synchronize()
    return max(time.perf_counter() - began, 1e-9)


def _all_reduce(numbers: torch.Tensor, world_size: int) -> None:
    import torch.distributed as dist

    if world_size > 1:
        dist.all_reduce(numbers)


def _say(phase: str, **facts: Any) -> None:
    """In one write: what libraries print must not come in between."""
    sys.stdout.write(json.dumps({"phase": phase, **facts}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: a rank that hangs ends with who started it
    code = main(sys.argv[1:])
    os._exit(code)  # what hung in a library must not be waited for; torch takes its time to be taken apart, too
