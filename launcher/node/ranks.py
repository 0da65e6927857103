"""The ranks of one node: started through torchrun, watched until the last one's end, stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.node import host as machine
from launcher.node import processes
from launcher.node.environment import prepare
from launcher.node.hang import ras
from launcher.node.hang.local import Local, watch_directory
from launcher.node.scratch import ScratchError, scratch_directory
from launcher.node.standby import Adopted, Standby
from launcher.plan.command import torchrun_command
from launcher.plan.plan import Plan
from launcher.records import known
from launcher.records.files import read_json, tail
from launcher.records.result import signal_of
from launcher.records.rundir import Attempt, RunDir
from launcher.slurm.allocation import job_id
from launcher.slurm.hostlist import expand

_LOOK_S = 0.05
"""How often to look for new ranks; a rank that dies within it cannot have been the victim of another."""
_TORCHRUN_S = 3.0
"""How long torchrun may take to notice that all its ranks are gone."""


@dataclass(frozen=True)
class Failure:
    """A rank that did not end well."""

    rank: int | None
    """None: torchrun itself was killed, and the ranks with it."""
    host: str
    exit_code: int
    """Negative for a signal, as in Python's subprocess."""
    ended: float
    """Seconds since the epoch, to the millisecond: tells the first failure from those it caused."""
    message: str
    log: str
    known: str = ""
    """The id of the reason that is recognised (:mod:`launcher.records.known`)."""
    stopped: bool = False
    """It ended after this node's ranks had been asked to."""

    @property
    def signal(self) -> str | None:
        """What killed it; None where it exited."""
        return signal_of(self.exit_code)


@dataclass(frozen=True)
class Report:
    """How the ranks of a node ended."""

    node: int
    code: int
    """torchrun's exit code."""
    failures: tuple[Failure, ...] = ()
    message: str = ""
    """Why torchrun itself failed, when no rank did."""
    host: str = ""

    def to_message(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_message(data: Mapping[str, Any]) -> Report:
        failures = tuple(Failure(**failure) for failure in data["failures"])
        return Report(data["node"], data["code"], failures, data["message"], data["host"])


@dataclass(frozen=True)
class Start:
    """What node 0 announces and every node starts its ranks with."""

    attempt: str
    """The attempt's directory."""
    master_addr: str
    master_port: int
    resume: str
    """The checkpoint to start from, or empty."""
    nodes: Sequence[int] = (0,)
    """The nodes of the allocation that train, in the order of their ranks; the others are spare."""
    probe_port: int = 0
    """Of a first all-reduce, where there is one before the ranks start."""


class Ranks:
    """torchrun and its ranks on this node."""

    def __init__(self, plan: Plan, node: int, host: str, start: Start, standby: Standby) -> None:
        self._plan, self._node, self._host, self._start, self._standby = plan, node, host, start, standby
        self._attempt = Attempt(Path(start.attempt))
        self._pids: dict[int, int] = {}  # by local rank
        self._ended: dict[int, float] = {}  # by local rank
        self._watchers: list[asyncio.Task[None]] = []
        self._torchrun: subprocess.Popen[bytes] | Adopted | None = None
        self._stopped_at: float | None = None
        self._oom_kills = machine.oom_kills()
        self.seen: Local | None = None
        """The ranks as they are seen from outside, once they are being started."""

    def pids(self) -> dict[int, int]:
        """The processes of the ranks that are alive, by global rank. May be called from another thread."""
        first = self._start.nodes.index(self._node) * self._plan.resources.nproc_per_node
        return {first + local: pid for local, pid in list(self._pids.items()) if local not in self._ended}

    async def run(self) -> Report:
        """Start the ranks, and wait until they have ended; a stop makes that happen."""
        name = f"{self._attempt.path.name}-{self._node}"  # of one attempt on one node, should the nodes share the place
        try:
            with (
                scratch_directory(self._plan.scratch, f"{self._plan.run_id}-{name}") as scratch,
                watch_directory(self._plan) as watched,
            ):
                self.seen = self._outside(watched)
                return await self._run(scratch)
        except ScratchError as error:
            return self._broken(1, str(error))

    def _outside(self, watched: Path | None) -> Local:
        first = self._start.nodes.index(self._node) * self._plan.resources.nproc_per_node
        record = RunDir(Path(self._plan.run_dir)).metrics if first == 0 else None
        given = {**os.environ, **self._plan.values(str(self._attempt.path), lambda hosts: self._host in expand(hosts))}
        nccl = ras.address(self._plan, given, f"{self._attempt.path} {self._node}")
        return Local(self._attempt, self._node, self._host, first, watched, self._pids, record, nccl)

    async def _run(self, scratch: Path | None) -> Report:
        try:
            self._torchrun = self._spawn(scratch)
        except OSError as error:
            return self._broken(127, f"cannot start {error.filename}: {error.strerror}")
        except LauncherError as error:
            return self._broken(1, str(error))
        watching = asyncio.create_task(self._watch(self._torchrun.pid))
        try:
            self._torchrun_ended = await processes.ended(self._torchrun.pid)
        finally:
            watching.cancel()
            self._end_orphans()
        return self._report(self._torchrun.wait())

    def _end_orphans(self) -> None:
        """A torchrun that was killed leaves its ranks to this process: they wait for each other, and hold the GPUs."""
        orphans = dict(_find_ranks(os.getpid(), {}))
        processes.kill_groups({*self._alive(), *orphans.values()}, signal.SIGKILL)

    async def stop(self, grace_s: float) -> None:
        """Ask the ranks to end, with SIGTERM, and kill what is left after the grace; without a grace, at once."""
        if self._torchrun is None or self._torchrun.poll() is not None:
            return
        self._stopped_at = self._stopped_at or time.time()
        self._look_for_ranks(self._torchrun.pid)  # they may train already, and have something to save
        if len(self._pids) < self._plan.resources.nproc_per_node:  # nothing can be saved, and no more are to start
            self._torchrun.kill()
            return
        if grace_s:
            processes.kill(self._alive(), signal.SIGTERM)
            await self._end_within(grace_s)
        processes.kill_groups(self._alive(), signal.SIGKILL)
        await self._end_within(0)
        self._torchrun.kill()

    def _alive(self) -> list[int]:
        return [pid for local_rank, pid in self._pids.items() if local_rank not in self._ended]

    async def _end_within(self, seconds: float) -> None:
        """Wait for the ranks, and then for torchrun, which notices a little later; but no longer than that."""
        assert self._torchrun is not None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*map(processes.ended, self._alive())), seconds or _TORCHRUN_S)
            await asyncio.wait_for(processes.ended(self._torchrun.pid), _TORCHRUN_S)

    def _spawn(self, scratch: Path | None) -> subprocess.Popen[bytes] | Adopted:
        start, attempt = self._start, self._attempt
        logs = str(attempt.path / f"torchrun-{self._node}")
        place, nodes = start.nodes.index(self._node), len(start.nodes)
        torchrun = torchrun_command(self._plan, place, start.master_addr, start.master_port, logs, nodes)
        contract = {**self._contract(), **({} if scratch is None else {"LAUNCHER_SCRATCH": str(scratch)})}
        command, environment = prepare(self._plan, attempt, self._host, torchrun, contract)
        return self._become_torchrun(command, environment, attempt.node_log(self._node))

    def _become_torchrun(
        self, command: Sequence[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes] | Adopted:
        """The process that waits for it since the attempt before, or a new one."""
        if self._plan.container is None:
            environment["LAUNCHER_AGENT_PID"] = str(os.getpid())
        channel = ()
        if self._plan.start.method == "fork":
            if (waiting := self._standby.take(command, environment, str(log))) is not None:
                return waiting
            channel = (self._standby.descriptor,)
            environment["LAUNCHER_STANDBY"] = str(*channel)
        with open(log, "ab") as file:
            return subprocess.Popen(
                command, cwd=self._plan.workdir, env=environment, start_new_session=True, pass_fds=channel,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _contract(self) -> dict[str, str]:
        """What a rank sees besides the plan's environment, and what only the node knows."""
        attempt = self._attempt
        return {
            "LAUNCHER_ATTEMPT": str(attempt.number),
            "LAUNCHER_WORLD_SIZE": str(len(self._start.nodes) * self._plan.resources.nproc_per_node),
            "LAUNCHER_RESUME": self._start.resume,
            "LAUNCHER_STOP_FILE": str(attempt.stop_file),
            "LAUNCHER_LOG_DIR": str(attempt.path),
            "LAUNCHER_TORCHRUN_OUTCOME": str(attempt.outcome(self._node)),
            **({} if self.seen is None else self.seen.contract()),
            "LAUNCHER_HOST": self._host,
            "LAUNCHER_JOB_ID": job_id(os.environ) if "SLURM_JOB_ID" in os.environ else "",
        }

    async def _watch(self, torchrun: int) -> None:
        """Learn the ranks' processes, and the moment when each of them ends."""
        try:
            while len(self._pids) < self._plan.resources.nproc_per_node:
                await asyncio.sleep(_LOOK_S)
                self._look_for_ranks(torchrun)
            await asyncio.gather(*self._watchers)
        finally:
            for watcher in self._watchers:
                watcher.cancel()

    def _look_for_ranks(self, torchrun: int) -> None:
        for local_rank, pid in list(_find_ranks(torchrun, self._pids)):
            self._pids[local_rank] = pid
            self._watchers.append(asyncio.create_task(self._note_end(local_rank, pid)))

    async def _note_end(self, local_rank: int, pid: int) -> None:
        self._ended[local_rank] = await processes.ended(pid)

    def _report(self, code: int) -> Report:
        if code < 0:  # by us, where it was to stop: that is no failure
            killed = () if self._stopped_at else (self._torchrun_killed(code),)
            return Report(self._node, code, killed, host=self._host)
        outcome = read_json(self._attempt.outcome(self._node)) or {}
        if failures := tuple(map(self._failure, outcome.get("failures", []))):
            return Report(self._node, code, failures, host=self._host)
        return self._broken(code, outcome.get("message") or self._last_words() if code else "")

    def _broken(self, code: int, message: str) -> Report:
        return Report(self._node, code, message=message, host=self._host)

    def _torchrun_killed(self, code: int) -> Failure:
        message = f"torchrun on {self._host} was killed by {signal_of(code)}"
        return Failure(None, self._host, code, self._torchrun_ended, message, str(self._attempt.node_log(self._node)))

    def _failure(self, entry: Mapping[str, Any]) -> Failure:
        log, code = self._attempt.rank_log(entry["rank"]), entry["exit_code"]
        ended = self._ended.get(entry["local_rank"], float(entry["time"]))
        message, reason = known.recognise(tail(log).decode(errors="replace"), signal_of(code))
        stopped = self._stopped_at is not None and ended > self._stopped_at
        if machine.oom_kills() > self._oom_kills and known.may_be_starved(reason) and not stopped:
            message, reason = f"the kernel killed it: {_memory_limit()}", known.BY_ID["oom-killer"]
        return Failure(
            rank=entry["rank"],
            host=self._host,
            exit_code=code,
            ended=ended,
            message=message or entry["message"],
            log=str(log),
            known=reason.id if reason else "",
            stopped=stopped,
        )

    def _last_words(self) -> str:
        lines = tail(self._attempt.node_log(self._node)).decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _memory_limit() -> str:
    return f"the {machine.memory().limit} MiB of memory that it may use were used up"


def _find_ranks(parent: int, known: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """New ranks below torchrun, as (local rank, process); a container's runtime may stand between it and us."""
    for pid in processes.children(parent):
        if pid in known.values():
            continue
        local_rank = processes.environment(pid).get("LOCAL_RANK", "")
        if local_rank.isdigit():
            yield int(local_rank), pid
        else:
            yield from _find_ranks(pid, known)
