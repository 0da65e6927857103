"""What NCCL says of itself when a run is suspected to hang.

NCCL cannot exist on a machine without GPUs: a FAKE of its RAS service, which answers to the same lines of text as
NCCL's `src/ras/client_support.cc`, stands for it. All else is the real thing.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.hang.ras import ask, troubles
from tests.conftest import Launch, only_run, script
from tests.test_local import SCRIPT

REPORT = """\
NCCL version 2.27.3 compiled with CUDA 12.9

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Errors
======

INCOMPLETE
  Missing communicator data from 1 rank (1 group)

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  1 ranks have launched up to operation 6650
  1 ranks have launched up to operation 6649
"""
FOUND = (
    "INCOMPLETE", "Missing communicator data from 1 rank (1 group)", "#0-0 (27a079b828ff1a75) MISMATCH",
    "Communicator ranks have different collective operation counts", "1 ranks have launched up to operation 6650",
    "1 ranks have launched up to operation 6649",
)  # fmt: skip


class FakeRas(socketserver.StreamRequestHandler):
    report = REPORT

    def handle(self) -> None:
        for line in self.rfile:
            words = line.decode().split()
            if words[:2] == ["CLIENT", "PROTOCOL"]:
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif words[0] == "TIMEOUT":
                self.wfile.write(b"OK\n")
            elif words == ["VERBOSE", "STATUS"]:
                self.wfile.write(self.report.encode())
                return


@contextmanager
def listening(handler: type[socketserver.BaseRequestHandler]) -> Generator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_address[1]}"
        server.shutdown()


def test_nccls_report_is_read_whole() -> None:
    with listening(FakeRas) as where:
        assert ask(where) == REPORT


class Deaf(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.read()


class Gone(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"SERVER PROTOCOL 9\n")


@pytest.mark.parametrize("service", [Deaf, Gone])
def test_a_service_that_does_not_answer_costs_seconds_and_no_word(
    service: type[socketserver.BaseRequestHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.node.hang.ras._PATIENCE_S", 0.2)
    with listening(service) as where:
        assert ask(where) == ""


def test_where_nobody_listens_nothing_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert ask(f"localhost:{free.getsockname()[1]}") == ""
    assert ask("no address at all") == ask("localhost:many") == ask("") == ""


def test_its_errors_and_warnings_are_found_and_nothing_else() -> None:
    assert troubles(REPORT) == FOUND
    assert troubles(REPORT.partition("Errors")[0]) == ()


@given(st.text())
def test_any_answer_is_read_without_an_error(text: str) -> None:
    assert len(troubles(f"Errors\n======\n{text}")) <= 6


HANGS = f"""\
import os, socketserver, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tests.test_ras import FakeRas
import torch, torch.distributed as dist
if os.environ["RANK"] == "0":  # in NCCL's place
    host, port = os.environ["NCCL_RAS_ADDR"].split(":")
    server = socketserver.ThreadingTCPServer((host, int(port)), FakeRas)
    threading.Thread(target=server.serve_forever, daemon=True).start()
dist.init_process_group("gloo")
for _ in range(100):  # now it is under way
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.train
def test_its_report_goes_on_record_and_into_the_story_of_a_hang(launch: Launch, workdir: Path) -> None:
    script(workdir, HANGS)
    limits = ("watch.hang_floor=2", "watch.hang_ceiling=3", "watch.hang_first=100", "watch.hang_end=4", "retry.hang=0")
    done = launch(*SCRIPT, "cluster.nproc_per_node=2", *limits)
    assert done.returncode == 1 and "hang: " in done.stderr
    run = only_run(workdir)
    assert REPORT.strip() in (run / "attempts/000/nccl-ras.txt").read_text()
    events = [json.loads(line) for line in (run / "attempts/000/events.jsonl").read_text().splitlines()]
    assert next(one for one in events if one["event"] == "hang")["nccl"] == list(FOUND)
    assert f"NCCL says (nccl-ras.txt): {'; '.join(FOUND)}" in launch("why", run.name).stdout


@pytest.mark.train
def test_ranks_on_cpus_are_given_no_address_and_the_users_own_counts(launch: Launch, workdir: Path) -> None:
    script(workdir, "import os\nprint(os.environ.get('NCCL_RAS_ADDR'))\n")
    for words, said in ((["cluster.device=cpu"], "None"), (["cluster.env.NCCL_RAS_ADDR='localhost:9'"], "localhost:9")):
        assert launch(*SCRIPT, *words, f"runs_dir={said[:4]}").returncode == 0
        (log,) = (workdir / said[:4]).glob("*/attempts/000/rank-0.log")
        assert log.read_text() == f"{said}\n"
