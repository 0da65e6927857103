"""What a training needs to know and to say as one rank of a run.

Works under the launcher, under plain torchrun, and as a lone process: what is not there is left out.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.records.files import write_json
from launcher.records.metrics import MetricsLog
from launcher.train import fence
from launcher.train.checkpoints import Checkpoints
from launcher.train.digest import digest
from launcher.train.ending import end_gently
from launcher.train.peers import Peers
from launcher.train.saving import Keep, Saver

_LINE_EVERY_S = 5.0
"""Seconds between two lines of progress in the log."""


class RanksOutOfSync(RuntimeError):
    """The ranks' parameters differ, so they no longer train one policy."""


class Rank:
    """One process of a distributed training. Use it as a context manager around the training."""

    def __init__(
        self, device: str = "auto", seed: int = 0, checkpoint_keep: int = 3, checkpoint_best: str | None = "return_mean"
    ) -> None:
        """Read the place from torchrun's variables and join the process group if there is more than one rank.

        Args:
            device: ``auto``, ``cpu`` or ``cuda``.
            seed: the run's seed; every rank gets its own from it and from its GLOBAL rank.
            checkpoint_keep: how many checkpoints are kept.
            checkpoint_best: the metric by which one more is kept, the best one; with ``-`` before it small is good.

        Raises:
            RuntimeError: the world is not the planned one, or CUDA is asked for and is not there.
        """
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.seed = seed + self.rank
        self.device = _device(device, self.local_rank)
        self.backend = "nccl" if self.device.type == "cuda" else "gloo"
        self.iteration = 0
        """Iterations that are done; a resumed training sets it to where it goes on."""
        self.in_sync: bool | None = None
        self.peers = Peers(self.rank, self.world_size, self.device)
        self._compared: dict[str, Any] | None = None
        progress = _path("LAUNCHER_PROGRESS")
        self._metrics = MetricsLog(progress, fence.check, _warn) if progress else None
        self._stop_file = _path("LAUNCHER_STOP_FILE")
        self._warned = False
        self._last: dict[str, Any] = {}
        self._last_line, self._shown = 0.0, None
        self._threads = ThreadPoolExecutor(1, "writer")
        keep = Keep(checkpoint_keep, checkpoint_best)
        self.saver = Saver(self.rank, self.world_size, keep, self._threads, self.largest, self._sync_metrics)
        self.checkpoints = Checkpoints(self.rank, self.world_size, self.saver, lambda: self._last)

    def __enter__(self) -> Rank:
        planned = os.environ.get("LAUNCHER_WORLD_SIZE")
        if planned is not None and int(planned) != self.world_size:
            raise RuntimeError(f"this rank sees a world of {self.world_size} ranks, and the plan has {planned}")
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._take_warning)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world_size > 1 and not dist.is_initialized():
            dist.init_process_group(self.backend)
        if dist.is_initialized() and dist.get_world_size() != self.world_size:
            joined = dist.get_world_size()
            raise RuntimeError(f"the process group has {joined} ranks, and torchrun has started {self.world_size}")
        end_gently()
        print(f"rank {self.rank} of {self.world_size}: seed {self.seed}, {self.device}, {self.backend}", flush=True)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._last.get("iteration") != self._shown:
            self._show()
        if self._metrics is not None:
            self._metrics.finish()
        if kind is None and dist.is_initialized():  # after an error the others may never come
            dist.destroy_process_group()

    @property
    def asked_to_stop(self) -> bool:
        """Whether this rank was; the others may hear of it later."""
        return self._warned or (self._stop_file is not None and self._stop_file.exists())

    def should_stop(self, wish: bool = False) -> bool:
        """True on all ranks alike when one of them was asked to stop, or wishes it. Collective."""
        return bool(self.largest([float(wish or self.asked_to_stop)])[0])

    def largest(self, values: Sequence[float]) -> list[float]:
        """Of each value the largest of all ranks. Collective."""
        if self.world_size == 1:
            return list(values)
        due = float(self.peers.due(self.iteration))
        tensor = torch.tensor([*values, due], dtype=torch.float32, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        *found, due = tensor.tolist()
        if due:
            self._compared = self.peers.compare(self.iteration)
            self._report("")
        return found

    def worked(self, seconds: float) -> None:
        """Say how long this rank worked by itself in this iteration, outside of collectives.

        By that, rank by rank, the agents find one that holds up the others. What a rank trains on it says with
        ``rank.peers.data.add(batch)``: by the first of it they find ranks that train on the same.
        """
        self.peers.worked(seconds)

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        if self.world_size > 1:
            dist.barrier()

    def progress(self, iteration: int, **metrics: Any) -> None:
        """Record that `iteration` iterations are done: a line of metrics.jsonl, now and then one of the log.

        To be called on every rank; only rank 0 writes. A disk that fails is no error: the line is written later.

        Raises:
            Superseded: another attempt of the run has begun.
        """
        self.iteration = iteration
        if self.rank != 0:
            return
        self._last = {"iteration": iteration, "time": time.time(), **metrics}
        if self._metrics is not None:
            self._metrics.append(self._last)
        if time.monotonic() - self._last_line > _LINE_EVERY_S:
            self._last_line = time.monotonic()
            self._show()

    def _show(self) -> None:
        self._shown = self._last["iteration"]
        print(" ".join(f"{key}={_short(value)}" for key, value in self._last.items() if key != "time"), flush=True)

    def check_sync(self, parameters: Iterable[torch.Tensor]) -> None:
        """Compare a digest of the parameters over all ranks. Collective.

        Raises:
            RanksOutOfSync: they differ; on all ranks alike.
        """
        if self.world_size == 1:
            self.in_sync = True
            return
        digests: list[int] = [0] * self.world_size
        dist.all_gather_object(digests, digest(parameters))
        self.in_sync = len(set(digests)) == 1
        written = self._report("")
        if not self.in_sync:
            wait([written])
            odd = [rank for rank, value in enumerate(digests) if value != digests[0]]
            raise RanksOutOfSync(f"the parameters of ranks {odd} differ from those of rank 0")

    def report(self, reason: str = "") -> None:
        """Write what the verdict needs to know of the training: how far it is, and why it ended. Rank 0 only.

        What the disk did not take of the metrics until now gets another chance.
        """
        wait([self._report(reason)])
        if self._metrics is not None:
            self._metrics.flush()

    def _report(self, reason: str) -> Future[None]:
        """Beside the training, in the order of the calls."""
        record = {
            "iteration": self.iteration,
            "world_size": self.world_size,
            "ranks_in_sync": self.in_sync,
            "reason": reason,
            "ranks": self._compared,
            "metrics": {key: value for key, value in self._last.items() if key not in ("iteration", "time")},
        }
        return self._threads.submit(self._write_report, record)

    def _write_report(self, record: Mapping[str, Any]) -> None:
        if self.rank != 0 or self._stop_file is None:
            return
        try:
            write_json(self._stop_file.with_name("training.json"), record)
        except OSError as error:
            _warn(f"training.json cannot be written ({error.strerror})")

    def _sync_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.sync()

    def _take_warning(self, *_: object) -> None:
        self._warned = True


def _device(wish: str, local_rank: int) -> torch.device:
    if wish == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("device=cuda, but torch sees no GPU here: use cluster.device=cpu, or a node with GPUs")
    if wish == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank)


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text) if text else None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _warn(text: str) -> None:
    print(f"warning: {text}", flush=True)
