"""The ranks of an all-reduce test on this node: started, followed, and ended at the deadline at the latest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.node import processes
from launcher.plan.plan import Plan
from launcher.records.probe import FAILED, HUNG, OK, WRONG, RankSeen

_OTHERS_S = 3.0
"""How long the other ranks have after one has failed: they fail because of it, or wait for it in vain."""
_STACK_S = 0.5
"""How long a rank has to say where it hangs."""
_LONGEST_TEXT = 4096
QUIETLY = {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"}
"""Unless it is set otherwise: NCCL's errors say nothing without its warnings."""
_LONGEST_LINE = 1 << 20


def probe_command(plan: Plan, backend: str, largest: int | None = None) -> list[str]:
    """The command of one rank. `backend`: ``auto``, ``nccl`` or ``gloo``; `largest`: of the all-reduces, bytes."""
    size = [] if largest is None else [f"--largest={largest}"]
    return [plan.python, "-m", "launcher.train.probe", f"--backend={backend}", *size]


def backend_of(plan: Plan) -> str:
    """What the ranks of a plan talk through."""
    device = plan.training.get("device", "auto")
    return {"cpu": "gloo", "cuda": "nccl"}.get(device, "auto")


@dataclass(frozen=True)
class World:
    """The process group of a test, and this node's part in it."""

    size: int
    ranks: Sequence[int]
    """Those of this node, by local rank."""
    master_addr: str
    master_port: int

    def environment(self, local_rank: int) -> dict[str, str]:
        """torchrun's variables, for one rank."""
        return {
            "RANK": str(self.ranks[local_rank]),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


Prepared = tuple[Sequence[str], Mapping[str, str]]
"""A command and its environment."""


class Probe:
    """The test on this node."""

    def __init__(
        self, world: World, host: str, deadline_s: float, say: Callable[[RankSeen], None] = lambda seen: None
    ) -> None:
        """`say` hears of every rank whenever it begins another phase, and when it has ended."""
        self._world, self._deadline_s, self._say = world, deadline_s, say
        self._seen = {rank: RankSeen(rank, host) for rank in world.ranks}
        self._failed = asyncio.Event()

    async def run(self, prepared: Callable[[Mapping[str, str]], Prepared], workdir: str) -> list[RankSeen]:
        """Start the ranks and follow them to their end; none of them is left when this returns, or is cancelled.

        Args:
            prepared: the command and the environment of a rank that is to see these variables.
            workdir: where the ranks start.
        """
        starts = [prepared(self._world.environment(local)) for local in range(len(self._world.ranks))]
        everybody = asyncio.gather(
            *(self._one(rank, *start, workdir) for rank, start in zip(self._world.ranks, starts))
        )
        limit = asyncio.create_task(self._limit())
        try:
            await asyncio.wait([limit, everybody], return_when=asyncio.FIRST_COMPLETED)
        finally:
            limit.cancel()
            everybody.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await everybody
        return list(self._seen.values())

    async def _limit(self) -> None:
        """Until the deadline, or a while after the first failure."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._failed.wait(), self._deadline_s)
            await asyncio.sleep(_OTHERS_S)

    async def _one(self, rank: int, command: Sequence[str], environment: Mapping[str, str], workdir: str) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=workdir, env=environment, start_new_session=True, limit=_LONGEST_LINE,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            self._end(rank, FAILED, f"cannot start {command[0]}: {error.strerror}")
            return
        following = asyncio.create_task(self._follow(rank, process))
        try:
            await asyncio.shield(following)
            code = await process.wait()
        except asyncio.CancelledError:
            processes.kill([process.pid], signal.SIGUSR2)
            await asyncio.wait([following], timeout=_STACK_S)
            self._end(rank, HUNG, "")
            raise
        finally:
            processes.kill_groups([process.pid], signal.SIGKILL)
            following.cancel()
            await process.wait()
        self._end(rank, *_ending(self._seen[rank], code))

    async def _follow(self, rank: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = (await process.stdout.readline()).decode(errors="replace")
            except ValueError:  # longer than any line of ours
                continue
            if not line:
                return
            message = _message(line)
            if message is None:
                seen = self._seen[rank]
                self._seen[rank] = replace(seen, text=(seen.text + line)[-_LONGEST_TEXT:])
            else:
                self._seen[rank] = self._seen[rank].took(message)
                self._say(self._seen[rank])

    def _end(self, rank: int, outcome: str, error: str) -> None:
        seen = self._seen[rank]
        if outcome == HUNG and seen.phase == "done":  # it only waited for the others to leave
            outcome, error = _ending(seen, 0)
        text, place = split_stack(seen.text)
        facts = {**seen.facts, **({"place": place} if place else {})}
        self._seen[rank] = replace(
            seen, outcome=outcome, error=error or seen.error, ended=time.time(), text=text, facts=facts
        )
        self._say(self._seen[rank])
        if outcome == FAILED:
            self._failed.set()


_STACK = re.compile(r'^Stack \(most recent call first\):\s*File "([^"]+)", line (\d+) in (\S+)', re.M)


def split_stack(text: str) -> tuple[str, str]:
    """A rank's output without the stack that faulthandler has printed, and the innermost place of that."""
    found = _STACK.search(text)
    if found is None:
        return text, ""
    return text[: found.start()], f"{Path(found[1]).name}:{found[2]} in {found[3]}"


def _message(line: str) -> Mapping[str, Any] | None:
    """What the probe says of itself, None where a library says something."""
    if not line.startswith('{"phase": '):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None


def _ending(seen: RankSeen, code: int) -> tuple[str, str]:
    """The outcome of a rank that has ended by itself, and its error."""
    if seen.phase == "done":
        return (WRONG, f"{seen.facts['wrong']} wrong sums") if seen.facts.get("wrong") else (OK, "")
    if seen.error:
        return FAILED, seen.error
    words = seen.text.strip().splitlines()[-1:] or [""]
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return FAILED, f"{how} {words[0][-300:]}".strip()
