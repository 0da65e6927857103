"""The end of a rank's process and of torchrun: a training that went well must not end in a crash."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.node.ranks import Ranks, Report, Start
from launcher.node.standby import Standby
from launcher.plan.build import build
from launcher.plan.command import torchrun_command
from tests.conftest import environment
from tests.test_local import processes_of, wait_until
from tests.test_plan import HERE

BUSY_AT_THE_END = """\
import torch
import torch.distributed as dist
from launcher.train.ending import end_gently

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
end_gently()
for _ in range(200):
    given, gathered = torch.ones(1_000_000), [torch.empty(1_000_000)]
    dist.all_gather(gathered, given, async_op=True)
    del given, gathered  # now gloo's threads are the last to hold them
"""


@pytest.mark.train
def test_a_process_ends_well_while_gloo_still_works() -> None:
    """Without `end_gently` two of three such processes die of SIGABRT."""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", BUSY_AT_THE_END], env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


TORCHRUN = """\
import os, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]], env={**os.environ, "LOCAL_RANK": "0"})
"""
SAVES = """\
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (Path("saved").touch(), sys.exit()))
Path("trains").touch()
time.sleep(60)
"""


def test_a_rank_that_was_not_seen_yet_may_save_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = build(compose([]).config, replace(HERE, runs_dir=tmp_path))
    ranks = Ranks(plan, 0, "here", Start(str(tmp_path), "127.0.0.1", 1, "", [0]), Standby())
    with subprocess.Popen([sys.executable, "-c", TORCHRUN, SAVES], cwd=tmp_path) as torchrun:
        wait_until((tmp_path / "trains").exists, 20)
        monkeypatch.setattr(ranks, "_torchrun", torchrun)
        asyncio.run(ranks.stop(10))
    assert (tmp_path / "saved").exists()


def test_a_torchrun_that_is_ended_before_its_ranks_began_is_nobodys_failure(tmp_path: Path) -> None:
    """Another one has failed, on another node; this one is still importing torch."""
    imports = tmp_path / "imports"
    imports.write_text("#!/bin/sh\ntouch began\nexec sleep 60\n")
    imports.chmod(0o700)
    plan = build(compose([]).config, replace(HERE, runs_dir=tmp_path))
    plan = replace(plan, python=str(imports), workdir=str(tmp_path))
    attempt = tmp_path / "000"
    attempt.mkdir()
    ranks = Ranks(plan, 0, "here", Start(str(attempt), "127.0.0.1", 1, "", [0]), Standby())

    async def stopped() -> Report:
        running = asyncio.create_task(ranks.run())
        while not running.done() and not (tmp_path / "began").exists():
            await asyncio.sleep(0.01)
        await ranks.stop(10)
        return await running

    assert asyncio.run(stopped()) == Report(0, -signal.SIGKILL, host="here")


@pytest.mark.train
def test_a_torchrun_that_waits_for_the_other_nodes_ends_with_its_agent(tmp_path: Path) -> None:
    """It waits in C++, where no signal but SIGKILL reaches it."""
    plan = build(compose([]).config, replace(HERE, runs_dir=tmp_path))
    plan = replace(plan, python=sys.executable, run_dir=str(tmp_path))
    (tmp_path / "plan.json").write_text(plan.to_json())
    port = free_port()
    torchrun = torchrun_command(plan, 0, "127.0.0.1", port, str(tmp_path), nodes=2)
    agent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys\nsubprocess.run(sys.argv[1:])", *torchrun],
        env=environment(LAUNCHER_RUN_DIR=str(tmp_path)),
    )
    wait_until(lambda: answers(port))
    agent.kill()
    agent.wait()
    wait_until(lambda: not processes_of(tmp_path), 5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
