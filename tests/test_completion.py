"""Completion: what the Tab key offers, and that it does so at once."""

from __future__ import annotations

import os
import pty
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.candidates import candidates, split
from launcher.cli.main import main
from tests.conftest import environment
from tests.test_local import wait_until

RUNS = ("20261130-120000-ant-rsl_rl-aaaa", "20261130-120001-ant-rsl_rl-bbbb", "20261130-120002-sweep-cccc")


@pytest.fixture
def runs(workdir: Path) -> Path:
    for name in (*RUNS, f"{RUNS[2]}/{RUNS[2]}-0000", "20261130-120003-other"):
        (workdir / "runs" / name).mkdir(parents=True)
    (workdir / "runs/20261130-120003-other").rename(workdir / "runs/other")
    return workdir


def offered(line: str) -> list[str]:
    return candidates(split(line))


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sta", ["status"]),
        ("task=cart", ["task=cartpole"]),
        ("-m task=cartpole,hop", ["task=cartpole,hopper"]),
        ("library=torch", ["library=torchrun"]),
        ("cluster=a100x", ["cluster=a100x2", "cluster=a100x8"]),
        ("plan cluster.gpus", ["cluster.gpus_per_node="]),
        ("render watch.preflight=", ["watch.preflight=basic", "watch.preflight=full", "watch.preflight=off"]),
        ("nccl=[p2p_off,-shm", ["nccl=[p2p_off,-shm_off"]),
        ("wait=", ["wait=false", "wait=true"]),
        ("nccl ", ["diagnose", "explain", "list"]),
        ("logs -f 20261130-12000", list(RUNS)),
        ("status 20261130-120002-sweep-cccc-", [f"{RUNS[2]}-0000"]),
        ("logs x runs_dir=nix ", []),
        ("resume=la", ["resume=latest"]),
        ("rerun 20261130-120001-ant-rsl_rl-bbbb cluster.nod", ["cluster.nodelist=", "cluster.nodes="]),
        ("nix=", []),
    ],
)
def test_what_fits_is_offered(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_choices_of_the_users_own_directory_are_offered(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / "conf/cluster").mkdir(parents=True)
    (workdir / "conf/cluster/lab.yaml").touch()
    assert offered("--config-dir conf cluster=la") == ["cluster=lab"]
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", "conf")
    assert offered("cluster=la") == ["cluster=lab"]


@given(st.text())
def test_whatever_is_typed_is_no_error(line: str) -> None:
    candidates(split(line))


def test_it_is_quick(runs: Path) -> None:
    """Nothing that takes long is imported; the processor's time is what a busy machine does not change."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = (
        "import sys; from launcher.cli.main import main; main(); sys.exit(bool({'hydra', 'yaml'} & set(sys.modules)))"
    )
    subprocess.run(
        [sys.executable, "-c", code, "completion", "bash", "--line", "cluster=a"], check=True, env=environment()
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_is_one(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n"], input=capsys.readouterr().out, text=True, check=True)


TYPED = (
    ("python -m launcher task=cartp\t", "python -m launcher task=cartpole "),
    ("launcher logs 20261130-120001\t", "launcher logs 20261130-120001-ant-rsl_rl-bbbb "),
)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(("typed", "line"), TYPED)
def test_the_tab_key_completes_in_a_terminal(runs: Path, shell: str, typed: str, line: str) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"no {shell} here")
    python = Path(sys.executable).parent
    pid, terminal = pty.fork()
    if pid == 0:
        quiet = {"PATH": f"{python}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(runs), "PS1": "> "}
        flags = ["--norc", "--noprofile", "-i"] if shell == "bash" else ["-f", "-i"]
        os.execve(program, [shell, *flags], {**environment(), **quiet})
    shown = ""

    def shows(text: str) -> bool:
        nonlocal shown
        shown += os.read(terminal, 65536).decode(errors="replace")
        return text in shown

    start = "autoload -Uz compinit; compinit -u; " if shell == "zsh" else ""
    os.write(terminal, f'{start}eval "$(python -m launcher completion {shell})"; echo rea"dy"\n'.encode())
    wait_until(lambda: shows("ready"), 20)
    os.write(terminal, typed.encode())
    wait_until(lambda: shows(line), 20)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    os.close(terminal)
