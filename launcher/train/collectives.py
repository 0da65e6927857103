"""How long this rank spends in torch's collectives: what the ranks do together, and wait for each other in."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

_NAMES = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast", "reduce",
          "reduce_scatter_tensor", "broadcast_object_list", "barrier")  # fmt: skip
"""Called as ``torch.distributed.NAME``, as RSL-RL, rl_games, skrl and the launcher do."""


class Collectives:
    """A clock around torch's collectives. What is asynchronous counts with its launch only."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._on_gpu: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def watch(self) -> None:
        """Have every collective timed from here on. For the life of the process."""
        for name in _NAMES:
            setattr(dist, name, self._timed(getattr(dist, name)))

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        pairs, self._on_gpu = self._on_gpu, []
        if pairs:
            pairs[-1][1].synchronize()
        return seconds + sum(began.elapsed_time(ended) for began, ended in pairs) / 1000

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            if dist.is_initialized() and dist.get_backend() == "nccl":
                return self._time_on_gpu(original, arguments, named)
            began = time.perf_counter()
            try:
                return original(*arguments, **named)
            finally:
                self._seconds += time.perf_counter() - began

        return timed

    def _time_on_gpu(self, original: Callable[..., Any], arguments: Any, named: Any) -> Any:
        """NCCL's calls return at once; the current stream waits for them."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        try:
            return original(*arguments, **named)
        finally:
            ended.record()
            self._on_gpu.append((began, ended))
