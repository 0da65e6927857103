"""The GPUs of this machine."""

from __future__ import annotations

import os

from launcher.slurm.allocation import visible_gpus


def gpus_here() -> list[str]:
    """What a process started here would find in CUDA_VISIBLE_DEVICES, set or not; empty without GPUs."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return visible_gpus(os.environ)
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:  # no driver here
        return []
