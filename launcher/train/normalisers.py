"""What keeps the normalisers of observations and values equal on all ranks.

Each rank sees other samples. A library that updates its running mean and variance from the rank's own lets the ranks
drift apart, and saves only rank 0's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist

Moments = tuple[torch.Tensor, torch.Tensor, int]
"""Mean, variance and number of samples."""


def _pool(mean: torch.Tensor, variance: torch.Tensor, count: int) -> Moments:
    if not dist.is_initialized():
        return mean, variance, count
    mean, variance = mean.double(), variance.double()
    size = torch.full_like(mean, count)
    sums = torch.stack([size, size * mean, size * (variance + mean**2)])
    dist.all_reduce(sums)
    everyone = sums[1] / sums[0]
    return everyone, sums[2] / sums[0] - everyone**2, int(sums[0].flatten()[0])


pool = cast("Callable[[torch.Tensor, torch.Tensor, int], Moments]", torch.compiler.disable(_pool))
"""The moments of all ranks' samples, from those of each rank's own. Collective; never part of a compiled graph."""
