"""When a run is suspected to hang, and what is said of it: from facts alone."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.compose import catalogue, compose
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.node.hang import stacks, watch
from launcher.node.hang.diagnosis import NO_ANSWER, diagnose, numbers
from launcher.node.hang.facts import Collective, Frame, NodeFacts, RankFacts
from launcher.node.hang.hint import BETWEEN_NODES, hint
from launcher.node.hang.local import Pulse
from launcher.node.hang.pace import Pace
from launcher.node.hang.watch import HANG, MOVES_AGAIN, SUSPICION, HangWatch, Suspicion
from launcher.node.ranks import Failure, Report
from launcher.node.verdict import Findings, judge
from launcher.plan.build import build
from launcher.plan.plan import Patience, Plan
from launcher.records.result import Result
from tests.conftest import ROOT, Launch, only_run, result_of, script
from tests.test_local import SCRIPT, wait_until
from tests.test_plan import HERE

ENV = Frame("step", "/home/me/my_env.py", 88)
LOOP = Frame("main", "/home/me/train.py", 20)
REDUCE = Frame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3000)
INIT = replace(REDUCE, function="init_process_group")
LOCK = Frame("wait", "/usr/lib/python3.11/threading.py", 331)
WORLD = {"0": [0, 1, 2, 3]}


def entered(
    number: int, *, done: bool = True, name: str = "all_reduce", group: str = "0", p2p: bool = False
) -> Collective:
    return Collective(group, number, name, done, "['Float'] [[10]]", p2p)


def waits(rank: int, *where: Collective, groups: Mapping[str, list[int]] = WORLD) -> RankFacts:
    return RankFacts(
        rank, f"gpu{rank:03}", "S", 0.0, "", 0.4, (REDUCE, LOOP), where or (entered(1532, done=False),), groups
    )


def works(rank: int, last: int = 1531, **facts: Any) -> RankFacts:
    seen = RankFacts(rank, f"gpu{rank:03}", "R", 1.0, "", 0.4, (ENV, LOOP), (entered(last),), WORLD)
    return replace(seen, **facts)


def said(*facts: RankFacts) -> str:
    return diagnose(facts).message


def test_the_rank_that_is_missing_from_a_collective_is_named_with_its_line() -> None:
    found = diagnose([waits(0), works(1), waits(2), waits(3)])
    assert found.message == (
        "ranks 0,2,3 wait in all_reduce #1532; rank 1 (gpu001) never entered it: it is in step at my_env.py:88 (busy)"
    )
    assert (found.rank, found.host, found.waiting) == (1, "gpu001", (0, 2, 3))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"state": "S", "busy": 0.0}, "it is in step at my_env.py:88 (asleep)"),
        ({"state": "R", "busy": 0.1}, "it is in step at my_env.py:88 (busy)"),  # on a crowded machine
        ({"stack": (LOCK, LOOP)}, "it is in main at train.py:20, inside wait of threading.py (busy)"),
        ({"state": "T", "stack": ()}, "it is stopped (SIGSTOP, or a debugger)"),
        ({"state": "T"}, "it is stopped (SIGSTOP, or a debugger) in step at my_env.py:88"),
        ({"state": "D", "wait_channel": "nfs"}, "it is blocked in the kernel at nfs (a disk, a driver) in step at"),
        ({"silent_s": 9.0}, "it is in step at my_env.py:88 (busy, and C code holds Python's lock)"),
        ({"stack": ()}, "it is in code that shows no Python stack (busy)"),
        ({"state": "", "stack": ()}, "it has ended"),
        ({"state": NO_ANSWER, "stack": (), "collectives": ()}, "its node does not answer"),
    ],
)  # fmt: skip
def test_what_the_missing_rank_does_is_told(seen: dict[str, Any], expected: str) -> None:
    assert f"rank 1 (gpu001) never entered it: {expected}" in said(waits(0), works(1, **seen))


def test_a_different_collective_is_told_from_a_missing_one() -> None:
    odd = waits(1, entered(1532, done=False, name="broadcast"))
    found = diagnose([waits(0), odd, waits(2)])
    assert found.message.startswith(
        "ranks 0,2 wait in all_reduce #1532; rank 1 (gpu001) is in another one, broadcast #1532: it is in main at"
    )
    assert (found.rank, found.waiting) == (1, (0, 2))


def test_of_two_ranks_in_different_collectives_both_are_listed() -> None:
    found = said(waits(0), waits(1, entered(1532, done=False, name="broadcast")))
    assert "rank 0 (gpu000) is in all_reduce #1532" in found and "rank 1 (gpu001) is in broadcast #1532" in found


def test_across_groups_the_rank_that_waits_nowhere_is_the_root() -> None:
    """Rank 3 keeps rank 2 waiting in their group, and rank 2 the others in the world's."""
    groups = {**WORLD, "7": [2, 3]}
    facts = [
        waits(0, groups=groups),
        waits(1, groups=groups),
        waits(2, entered(1531), entered(40, done=False, group="7"), groups=groups),
        works(3, collectives=(entered(1531), entered(39, group="7")), groups=groups),
    ]
    found = diagnose(facts)
    assert found.rank == 3
    assert (
        "ranks 0,1 wait in all_reduce #1532; rank 2 waits in all_reduce #40 of group 7 (ranks 2,3); rank 3"
        in found.message
    )


def test_a_queue_of_collectives_is_judged_by_the_first_that_does_not_end() -> None:
    """NCCL's host runs ahead of its GPU."""
    ahead = (entered(1532, done=False), entered(1540, done=False, name="broadcast"))
    assert diagnose([waits(0, *ahead), works(1), waits(2, *ahead)]).rank == 1
    assert diagnose([waits(rank, *ahead) for rank in range(3)]).stalled


def test_a_rank_that_never_joined_is_named_by_the_others_stacks() -> None:
    joins = RankFacts(0, "a", "S", 0.0, "", None, (LOCK, INIT, LOOP))
    found = diagnose([joins, works(1, collectives=(), groups={}, silent_s=None)])
    assert found.message.startswith(
        "rank 0 waits in init_process_group; rank 1 (gpu001) never entered it: it is in step"
    )
    assert found.rank == 1


def test_without_a_flight_recorder_the_stacks_tell_who_waits() -> None:
    blind = [replace(one, collectives=(), groups={}) for one in (waits(0), works(1), waits(2))]
    assert said(*blind).startswith("ranks 0,2 wait in all_reduce; rank 1 (gpu001) never entered it: it is in step")


def test_a_stopped_rank_that_had_entered_the_collective_is_to_blame_all_the_same() -> None:
    stopped = works(1, 1532, state="T", stack=(), silent_s=30.0)
    assert "rank 1 (gpu001): it is stopped" in said(waits(0), stopped, waits(2))


def test_a_receive_that_nobody_answers_names_the_rank_that_does_not_send() -> None:
    found = diagnose([waits(0, entered(3, done=False, name="recv 0<-1", p2p=True)), works(1)])
    assert found.message.startswith("rank 0 waits in recv 0<-1; rank 1 (gpu001): it is in step at my_env.py:88")


def test_a_collective_that_all_have_entered_is_nobodys_fault() -> None:
    found = diagnose([waits(rank) for rank in range(4)])
    assert found.stalled and found.rank is None
    assert found.message.startswith("ranks 0-3 wait in all_reduce #1532; nobody is missing")


def test_a_lone_rank_is_told_where_it_is_and_whether_it_computes() -> None:
    alone = works(0, collectives=(), groups={})
    assert said(alone) == "no rank is in a collective; rank 0 (gpu000): it is in step at my_env.py:88 (busy)"
    assert diagnose([alone]).busy
    assert not diagnose([replace(alone, state="S", busy=0.0)]).busy


def test_many_ranks_are_told_in_short() -> None:
    world = {"0": list(range(128))}
    facts = [works(rank, groups=world) if rank > 60 else waits(rank, groups=world) for rank in range(128)]
    assert said(*facts).startswith("ranks 0-60 wait in all_reduce #1532; rank 61 (gpu061) never entered it")
    assert said(*facts).endswith("likewise 64-127")


COLLECTIVES = st.builds(
    Collective, st.sampled_from("01"), st.integers(0, 4), st.sampled_from("ab"), st.booleans(), p2p=st.booleans()
)
RANKS = st.builds(
    RankFacts,
    rank=st.integers(0, 5),
    host=st.just("h"),
    state=st.sampled_from(["R", "S", "D", "T", "", NO_ANSWER]),
    busy=st.floats(0, 1),
    silent_s=st.none() | st.floats(0, 100),
    stack=st.lists(st.sampled_from([ENV, LOOP, REDUCE, INIT, LOCK]), max_size=3).map(tuple),
    collectives=st.lists(COLLECTIVES, max_size=4).map(tuple),
    groups=st.dictionaries(st.sampled_from("01"), st.lists(st.integers(0, 7), unique=True)),
)  # fmt: skip


@settings(max_examples=50)
@given(st.lists(RANKS, max_size=6, unique_by=lambda one: one.rank))
def test_whatever_is_seen_there_is_one_line_that_blames_nobody_who_waits(facts: list[RankFacts]) -> None:
    found = diagnose(facts)
    assert found.message and "\n" not in found.message
    assert found.rank is None or found.rank not in found.waiting
    assert NodeFacts.from_message(NodeFacts(tuple(facts)).to_message()).ranks == tuple(facts)


@given(st.sets(st.integers(0, 300)))
def test_ranks_in_short_are_the_same_ranks(ranks: set[int]) -> None:
    parts = [part.split("-") for part in numbers(ranks).split(",") if part]
    assert [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)] == sorted(ranks)


# the run's own pace

USUAL = Patience()


def paced(*pauses: float, patience: Patience = USUAL) -> Pace:
    pace = Pace(patience)
    for pause in pauses:
        pace.passed(pause, moved=True)
    return pace


def test_the_limit_is_five_times_the_longest_pause_between_floor_and_ceiling() -> None:
    assert paced(*[2.0] * 30).suspect_s == 60
    assert paced(*[20.0] * 30).suspect_s == 100
    assert paced(*[2.0] * 30, 90.0, 2.0).suspect_s == 450  # a slow checkpoint is no surprise the next time
    assert paced(*[500.0] * 30).suspect_s == 1800


def test_a_run_that_only_starts_has_more_time_and_its_first_pauses_are_forgotten() -> None:
    assert paced().suspect_s == paced(5.0).suspect_s == 600
    assert paced(9.0, 60.0, 1.0, 1.0, 1.0, 1.0).suspect_s == 300  # a first iteration that compiles
    assert paced(9.0, 60.0, *[1.0] * 30).suspect_s == 60


def test_the_end_is_a_later_limit_or_none() -> None:
    assert paced(*[2.0] * 30).end_s == 1800
    assert paced(*[400.0] * 30).end_s == 3600
    assert paced(patience=Patience(end_s=None)).end_s is None


def test_work_without_a_move_is_no_pause_and_no_progress() -> None:
    pace = paced()
    for _ in range(100):
        pace.passed(5.0, moved=False, works=True)
    assert (pace.idle_s, pace.suspect_s) == (0.0, 600)
    pace.passed(5.0, moved=False)
    assert pace.idle_s == 5.0


# node 0's watch

QUICK = Patience(floor_s=0.05, ceiling_s=0.05, first_s=0.05, end_s=0.12)
MOVED, STILL, BUSY = Pulse(collectives=True), Pulse(), Pulse(busy=True)


class Run:
    """A watch over two nodes, without any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, facts: Sequence[RankFacts], patience: Patience = QUICK) -> None:
        monkeypatch.setattr(watch, "period_s", lambda _: 0.01)
        monkeypatch.setattr(watch, "_FACTS_S", 0.2)
        self.events: list[tuple[str, Suspicion | None]] = []
        self.facts = facts
        hosts = ["gpu000", "gpu001"]
        self.watch = HangWatch(patience, {0: [0], 1: [1]}, hosts, self.answer, lambda *event: self.events.append(event))

    def answer(self, question: int) -> None:
        for one in self.facts:
            self.watch.take("facts", one.rank, {"question": question - 1, **NodeFacts(()).to_message()})  # too late
            self.watch.take("facts", one.rank, {"question": question, **NodeFacts((one,), (0.97,)).to_message()})

    def pulse(self, pulse: Pulse) -> None:
        for node in (0, 1):
            self.watch.take("pulse", node, asdict(pulse))

    def play(self, pulse: Callable[[int], Pulse], seconds: float = 1.0) -> list[str]:
        async def scene() -> None:
            watching = asyncio.create_task(self.watch.run())
            for tick in range(int(seconds / 0.01)):
                self.pulse(pulse(tick))
                await asyncio.sleep(0.01)
                if watching.done():
                    return
            watching.cancel()

        asyncio.run(scene())
        return [event for event, _ in self.events]


def test_a_run_that_stands_still_is_suspected_once_and_then_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [waits(0), works(1)])
    assert run.play(lambda tick: MOVED if tick < 5 else STILL) == [SUSPICION, HANG]
    found = run.events[0][1]
    assert found is not None and found.diagnosis.rank == 1 and found.gpus_busy
    assert found.to_record()["message"].startswith("rank 0 waits in all_reduce #1532; rank 1")


def test_a_run_that_moves_again_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [waits(0), works(1)], replace(QUICK, end_s=60.0))
    assert run.play(lambda tick: STILL if 10 < tick < 30 else MOVED, 0.5) == [SUSPICION, MOVES_AGAIN]


def test_a_node_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, [waits(0)])
    assert run.play(lambda _: STILL)[-1] == HANG
    assert "rank 1 (gpu001) never entered it: its node does not answer" in run.events[-1][1].diagnosis.message  # pyright: ignore[reportOptionalMemberAccess]


def test_a_program_that_only_computes_is_never_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Run(monkeypatch, [works(0), works(1)]).play(lambda _: BUSY, 0.4) == []


def test_ranks_that_compute_and_do_not_wait_are_suspected_but_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a long evaluation at the end; but for a training that told of its iterations, and stopped doing so."""
    assert Run(monkeypatch, [works(0), works(1)]).play(lambda tick: MOVED if tick < 5 else BUSY, 0.5) == [SUSPICION]
    tells = Run(monkeypatch, [works(0), works(1)])
    assert tells.play(lambda tick: Pulse(record=True) if tick < 5 else BUSY) == [SUSPICION, HANG]


def test_without_a_limit_nothing_is_ended_and_without_a_floor_nothing_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Run(monkeypatch, [waits(0), works(1)], replace(QUICK, end_s=None)).play(lambda _: STILL, 0.4) == [SUSPICION]
    run = Run(monkeypatch, [])
    run.watch.patience = None
    assert run.play(lambda _: STILL, 0.2) == []


# the verdict


def plan_of(*overrides: str) -> Plan:
    return build(compose(["cluster=a100x2", "cluster.nodes=2", *overrides]).config, HERE)


def suspicion(*facts: RankFacts) -> Suspicion:
    return Suspicion(70.0, 60.0, diagnose(facts), gpus_busy=True)


def verdict(findings: Findings) -> Result:
    return judge(plan_of(), findings, {"iteration": 7}, attempts=1, seconds=90)


def died(rank: int, signal_number: int = 6) -> dict[int, Report]:
    return {0: Report(0, 1, (Failure(rank, "gpu000", -signal_number, 1.0, "", ""),))}


def test_a_hang_is_told_with_rank_and_host_and_never_as_the_crash_that_ended_it() -> None:
    hung = suspicion(waits(0), works(1))
    killed = verdict(Findings(died(0, 15), suspicion=hung, hung=True))
    assert (killed.cause, killed.rank, killed.host, killed.signal, killed.iteration) == ("hang", 1, "gpu001", None, 7)
    assert killed.line().startswith("failed: hang: rank 0 waits in all_reduce #1532; rank 1 (gpu001) never entered it")
    assert "stacks-RANK.txt" in killed.hint
    assert verdict(Findings(died(0), suspicion=hung)).cause == "hang"  # torch's own limit was shorter


def test_what_the_suspected_rank_dies_of_is_a_crash() -> None:
    assert verdict(Findings(died(1), suspicion=suspicion(waits(0), works(1)))).cause == "crash"


def test_a_lost_node_is_no_hang() -> None:
    lost = Findings(died(0), lost={"gpu001": 0.5}, suspicion=suspicion(waits(0)))
    assert verdict(lost).cause == "node_lost"


def test_the_hint_of_a_stalled_collective_names_settings_of_the_catalogue_that_are_not_in_force() -> None:
    stalled = suspicion(waits(0), waits(1))
    text = hint(plan_of("nccl=[p2p_off]"), stalled)
    assert "all GPUs compute at full load" in text
    assert "nccl=[+ib_off]" in text and "p2p_off" not in text
    assert "ib_off" not in hint(plan_of("cluster.nodes=1"), stalled)
    assert "network_interface" in hint(plan_of("cluster.device=cpu"), stalled)
    assert set(BETWEEN_NODES) <= set(catalogue().names())


# the configuration


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("watch.hang_floor=0", "watch.hang_floor=0 is too small"),
        ("watch.hang_ceiling=10", "is below watch.hang_floor=60"),
        ("watch.hang_end=60", "has to come after the suspicion"),
        ("watch.hang_first=no", "watch.hang_first"),
    ],
)
def test_limits_that_make_no_sense_are_refused(override: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        validate(compose([override]).config)


def test_limits_reach_the_node_and_null_turns_them_off() -> None:
    def patience(*overrides: str) -> Patience | None:
        config = compose(list(overrides)).config
        validate(config)
        return Plan.from_json(build(config, HERE).to_json()).budgets.hang

    assert patience() == Patience()
    assert patience("watch.hang_end=null") == Patience(end_s=None)
    assert patience("watch.hang_floor=null") is None


# stacks of live processes

SITE = ROOT / "launcher/train/site"
ASLEEP = "import time\ndef nap():\n    time.sleep(60)\nnap()\n"


def rank_process(directory: Path, text: str, **variables: str) -> subprocess.Popen[bytes]:
    script = directory / "train.py"
    script.write_text(text)
    ours = {"RANK": "3", "LOCAL_RANK": "1", "LAUNCHER_WATCH_DIR": str(directory), "PYTHONPATH": str(SITE), **variables}
    environment = {**os.environ, **ours}
    return subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE)


def stack_of(directory: Path, process: subprocess.Popen[bytes]) -> tuple[Frame, ...]:
    """Asked time and again: a process that has only begun has no Python frame yet."""
    file = directory / "stack-3"

    def asked() -> tuple[Frame, ...]:
        there = stacks.ask(process.pid) and file.exists()
        return stacks.main_thread(file.read_text(), None) if there else ()

    return wait_until(asked, 10)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (ASLEEP, ("nap", 3)),
        ("import re\nre.match('(a+)+$', 'a' * 64 + 'b')\n", ("<module>", 2)),  # C code that keeps Python's lock
    ],
)
def test_an_unmodified_script_tells_where_it_is(tmp_path: Path, text: str, place: tuple[str, int]) -> None:
    process = rank_process(tmp_path, text)
    try:
        wait_until(lambda: any(frame.file.endswith("train.py") for frame in stack_of(tmp_path, process)), 10)
        stack = stack_of(tmp_path, process)
        assert next((one.function, one.line) for one in stack if one.file.endswith("train.py")) == place
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_is_no_rank_is_not_touched_and_not_asked(tmp_path: Path) -> None:
    process = rank_process(tmp_path, ASLEEP, LOCAL_RANK="")
    process.kill()
    process.communicate()
    with subprocess.Popen(["sleep", "60"]) as other:
        assert not stacks.ask(other.pid)  # the signal would have killed it
        assert other.poll() is None
        other.kill()


def test_what_a_rank_starts_is_no_rank_and_users_keep_their_own_sitecustomize(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('mine')\n")
    text = "import os, sitecustomize\nprint(sitecustomize.__file__, os.environ.get('LAUNCHER_WATCH_DIR'))\n"
    process = rank_process(tmp_path, text, PYTHONPATH=f"{SITE}:{own}")
    assert process.communicate()[0].decode().split() == ["mine", str(own / "sitecustomize.py"), "None"]


def test_the_main_thread_is_found_by_its_number_whatever_its_place() -> None:
    text = (
        'Thread 0x00000000000000aa [worker] (most recent call first):\n  File "a.py", line 1 in work\n\n'
        "Current thread 0x00000000000000bb (most recent call first):\n  Garbage-collecting\n"
        '  File "b c.py", line 22 in <module>\n'
    )
    assert stacks.main_thread(text, 0xBB) == (Frame("<module>", "b c.py", 22),)
    assert stacks.main_thread(text, 0xAA) == (Frame("work", "a.py", 1),)
    assert stacks.main_thread(text, None) == (Frame("<module>", "b c.py", 22),)


@given(st.text('Current thadx01FileTbp",.() [in]<>:\n', max_size=200))
def test_no_text_breaks_the_reader_of_stacks(text: str) -> None:
    stacks.main_thread(text, None)
    stacks.main_thread(f"Current thread 0x1 (most recent call first):\n{text}", 1)


def test_the_signal_is_one_that_nothing_else_uses() -> None:
    assert stacks.SIGNAL not in signal.Signals.__members__.values()
    assert f"SIGRTMAX - {signal.SIGRTMAX - stacks.SIGNAL}" in (SITE / "sitecustomize.py").read_text()


# with torch, on this machine

OWN_LIMIT = """\
import datetime, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
if dist.get_rank() == 1:
    time.sleep(60)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.train
def test_what_torchs_own_limit_ends_before_it_is_suspected_is_a_hang_as_well(launch: Launch, workdir: Path) -> None:
    script(workdir, OWN_LIMIT)
    done = launch(*SCRIPT, "cluster.nproc_per_node=2", "retry.hang=0")
    assert done.returncode == 1
    result = result_of(only_run(workdir))
    assert (result["cause"], result["rank"], result["known"]) == ("hang", 0, "collective-timeout")
    assert "some rank did not come to a collective" in result["hint"]


WITH_LOADER = """\
import time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(600)  # the disk is gone

if __name__ == "__main__":
    dist.init_process_group("gloo")
    for _ in range(100):  # now it is under way
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
    for batch in DataLoader(Slow(), num_workers=1):
        pass
"""


@pytest.mark.train
def test_the_stacks_of_data_loaders_are_kept_too(launch: Launch, workdir: Path) -> None:
    script(workdir, WITH_LOADER)
    limits = ("watch.hang_floor=2", "watch.hang_ceiling=3", "watch.hang_first=100", "watch.hang_end=4", "retry.hang=0")
    assert launch(*SCRIPT, *limits).returncode == 1
    kept = (only_run(workdir) / "attempts/000/stacks-0.txt").read_text()
    assert len(set(re.findall("process [0-9]+", kept))) == 2
    assert re.search(r'train it.py", line 9 in __getitem__', kept)
