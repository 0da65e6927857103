"""The job of Slurm's that a start of a run is part of: why it is being stopped, and how it comes to start again.

Every call blocks; for a thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from launcher.errors import SchedulerError
from launcher.node.place import Place
from launcher.plan.plan import Plan
from launcher.records.files import tail
from launcher.records.rundir import RunDir
from launcher.records.submission import record_job, submitted
from launcher.slurm import commands
from launcher.slurm.fate import Fate, Stop, failed_nodes

_ANSWER_S = 10.0
"""How long to ask a controller that does not answer why the job is stopped: the job may have seconds left."""
_OUTAGE_S = 1800.0
"""How long to wait for a controller that is to start the job again."""
_MISSED_S = 60.0
"""How much longer than SlurmdTimeout it may take Slurm to find a node dead: it looks now and then."""
_AGAIN_S = 2.0
_KILL_WAIT_S = 30
"""Slurm's own default."""

T = TypeVar("T")


class Job:
    """As node 0 of one start deals with it."""

    def __init__(self, run: RunDir, job_id: str, restarts: int, packed: bool) -> None:
        self._run, self._job_id, self._restarts, self._packed = run, job_id, restarts, packed
        self._again = ""  # the job in which the run goes on, once that is arranged
        self._read = {path: path.stat().st_size for path in self._output()}

    @staticmethod
    def of(run: RunDir, place: Place) -> Job | None:
        """The job around this process; None without Slurm."""
        return None if place.job_id is None else Job(run, place.job_id, place.restarts, place.packed)

    def why_stopped(self, hosts: Sequence[str]) -> Stop:
        """What Slurm says of a signal that it has sent, or has not."""
        try:
            fate, said = _insist(lambda: commands.fate(self._job_id), _ANSWER_S), self._printed()
            down = list(dict.fromkeys([*failed_nodes(said), *commands.down(hosts)]))
            return Stop(fate.cause(self._restarts, bool(down), said), down, fate.ending)
        except SchedulerError:
            return Stop("terminated")

    def requeued(self) -> bool:
        """True when Slurm starts the job again by itself."""
        try:
            return not self._again and commands.fate(self._job_id).requeued_since(self._restarts)
        except SchedulerError:
            return False

    def gone_on(self) -> bool:
        """True when the run goes on elsewhere: Slurm has requeued the job, or another one has taken over."""
        now = submitted(self._run).get("job_id") or self._job_id
        return now != self._job_id or self.requeued()

    def start_again(self, plan: Plan, run: RunDir, avoided: Sequence[str], node_is_dead: bool) -> None:
        """Put the job back into the queue, or a copy of it where its site forbids that; once.

        Where the allocation holds other runs, that is not for one of them to do. A node that is dead has to be Slurm's
        discovery: requeued before, the job starts with what Slurm 22.05 still takes for that node's GPUs, and no step
        can be made in it ("Invalid generic resource (gres) specification").

        Raises:
            SchedulerError: Slurm refused.
        """
        if self._packed or self._again:
            return
        fate = self._fate_of_dead_node() if node_is_dead else _insist(lambda: commands.fate(self._job_id), _OUTAGE_S)
        if fate.requeued_since(self._restarts):
            self.avoid(plan, avoided)
        elif fate.requeue:
            commands.requeue(self._job_id)
            self._again = self._job_id
            self.avoid(plan, avoided)
        else:
            self._again = commands.submit_again(self._job_id, _exclude(plan, fate, avoided))
            record_job(run.slurm, run.submission, self._again)

    def _fate_of_dead_node(self) -> Fate:
        """What becomes of the job when Slurm has missed the node, or, where only we miss it, could have."""
        deadline = time.monotonic() + _insist(commands.slurmd_timeout, _OUTAGE_S) + _MISSED_S
        while True:
            fate = _insist(lambda: commands.fate(self._job_id), _OUTAGE_S)
            if fate.requeued_since(self._restarts) or time.monotonic() > deadline:
                return fate
            time.sleep(_AGAIN_S)

    def avoid(self, plan: Plan, avoided: Sequence[str]) -> None:
        """Have a job that was requeued keep away from nodes, if Slurm will: only a pending job can be told."""
        if avoided and not self._packed:
            with contextlib.suppress(SchedulerError):
                commands.keep_away(self._job_id, _exclude(plan, commands.fate(self._job_id), avoided))

    @property
    def kill_wait_s(self) -> int:
        """How long what Slurm ends has from its SIGTERM on; its default where it cannot be asked."""
        try:
            return commands.kill_wait()
        except SchedulerError:
            return _KILL_WAIT_S

    def end_for_good(self, unasked: bool) -> None:
        """Take back what was arranged for a run that has ended; with `unasked`, Slurm's own requeue as well.

        Raises:
            SchedulerError: Slurm refused.
        """
        if self._again:
            commands.cancel(self._again)
        elif unasked and not self._packed and self.requeued():
            commands.cancel(self._job_id)

    def _output(self) -> Iterator[Path]:
        for folder in {self._run.slurm, Path(submitted(self._run).get("folder") or self._run.slurm)}:
            yield from folder.glob("*.out")

    def _printed(self) -> str:
        """What the job has printed since this start: slurmstepd's reasons, and earlier starts' stand before them."""
        new = ((path, path.stat().st_size - self._read.get(path, 0)) for path in self._output())
        return "".join(tail(path, min(size, 1 << 16)).decode(errors="replace") for path, size in new if size > 0)


def _insist(ask: Callable[[], T], seconds: float) -> T:
    """Ask until there is an answer.

    Raises:
        SchedulerError: there was none.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except SchedulerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def _exclude(plan: Plan, fate: Fate, avoided: Sequence[str]) -> str:
    """The node list to keep away from; only what the job excluded before, where it could never start otherwise."""
    wanted = ",".join(dict.fromkeys(filter(None, [fate.excluded, *avoided])))
    if wanted == fate.excluded:
        return wanted
    possible = not commands.test_only({**plan.directives, "exclude": wanted}).startswith("never")
    return wanted if possible else fate.excluded
