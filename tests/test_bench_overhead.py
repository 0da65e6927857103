"""What the launcher itself costs, as the user measures it: ``bench overhead``."""

import functools
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.bench_overhead import describe_overhead
from launcher.config.compose import compose
from launcher.plan.plan import Plan
from launcher.submission.plain import plain_here, plain_job
from launcher.submission.prepare import plan_here
from tests.conftest import Launch
from tests.sandbox import Sandbox
from tests.test_slurm import launch_on


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["dry_run=true"], "starts jobs"),
        (["cluster=pyxis"], "without containers"),
        (["cluster=a100x2", "cluster.nodes=1-2"], "fixed number of nodes"),
        (["cluster.scheduler=none", "cluster.hosts=a"], "starts its jobs itself"),
        (["cluster=a100x2"], "there is no Slurm here"),
    ],
)
def test_what_cannot_be_compared_is_refused(launch: Launch, workdir: Path, words: list[str], told: str) -> None:
    refused = launch("bench", "overhead", *words, PATH=str(workdir))
    assert refused.returncode == (3 if "no Slurm" in told else 2) and told in refused.stderr
    assert len(refused.stderr.splitlines()) == 1 and not (workdir / "runs").exists()


@functools.cache
def planned(*words: str) -> Plan:
    return plan_here(compose(["task=script", "task.path=x.py", "library=torchrun", "snapshot=off", *words]).config)


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=20))
def test_by_hand_the_users_text_reaches_no_shell_unquoted(text: str) -> None:
    plan = replace(planned("cluster=sandbox"), setup=(), directives={}, submit_dir=text, python="torch run")
    lines = plain_job(plan, ["x.py", text], Path("/logs")).split("\n")[:-1]
    assert ["cd", text] == shlex.split(lines[2])[:2]
    srun = shlex.split(lines[-1])
    assert srun[:2] == ["exec", "srun"] and srun[-3:-1] == ["bash", "-c"]
    on_node = srun[-1].replace('"$SLURM_NODEID"', "0").replace("$((20000 + SLURM_JOB_ID % 10000))", "0")
    assert shlex.split(on_node)[:2] == ["exec", "torch run"] and shlex.split(on_node)[-1] == text


def test_by_hand_the_ranks_have_the_same_settings_and_none_of_the_launchers_own() -> None:
    words = ("cluster=sandbox", "cluster.env.NCCL_IB_DISABLE=1", "cluster.nodes=2", "cluster.nproc_per_node=3")
    text = plain_job(planned(*words), ["x.py"], Path("/logs"))
    assert "export NCCL_IB_DISABLE=1" in text and "LAUNCHER_" not in text
    assert "#SBATCH --nodes=2" in text and "--nnodes=2 --nproc-per-node=3" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    command, environment = plain_here(planned("cluster.nproc_per_node=3"), ["x.py"], Path("/logs"))
    assert command[0] == sys.executable and command[-2:] == ["--nproc-per-node=3", "x.py"]
    assert "LAUNCHER_RUN_DIR" not in environment


def test_the_ratio_is_that_of_the_pairs_and_the_spread_that_of_each_kind() -> None:
    pairs = [
        {"by_hand": {"first_sum_s": hand, "memory_mib": 400.0}, "here": {"first_sum_s": here, "memory_mib": 200.0}}
        for hand, here in ((4.0, 2.0), (8.0, 6.0), (6.0, 3.0))
    ]
    found = {"scheduler": "slurm", "nodes": 2, "nproc_per_node": 2, "start_method": "fork", "device": "cpu",
             "pairs": pairs, "ratio": {"first_sum_s": 0.5, "memory_mib": 0.5}}  # fmt: skip
    text = describe_overhead(found)
    assert "srun torchrun by hand, and here (start=fork): 4 ranks on 2 nodes, cpu" in text
    assert "6.00 s" in text and "(4.00 s - 8.00 s)" in text and "3.00 s" in text and "0.50" in text


@pytest.mark.train
def test_on_this_machine_both_kinds_are_started_and_measured(launch: Launch, workdir: Path) -> None:
    words = ("cluster.device=cpu", "cluster.nproc_per_node=2", "bench.repetitions=1")
    done = launch("bench", "overhead", *words, "--json", "-o", "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((workdir / "found.json").read_text())
    ((pair,), ratio) = found["pairs"], found["ratio"]
    assert found["start_method"] == "fork" and found["device"] == "cpu"
    for name in ("first_sum_s", "memory_mib"):
        assert pair["here"][name] > 0 and ratio[name] == pair["here"][name] / pair["by_hand"][name]
    assert ratio["memory_mib"] < 1  # torch is in memory once, torchrun by hand has it three times
    assert launch("status").stdout.startswith("no runs")  # neither kind is a run to look after


@pytest.mark.slurm
@pytest.mark.train
def test_on_a_cluster_the_jobs_take_turns_and_one_that_fails_is_named(sandbox: Sandbox, workdir: Path) -> None:
    words = ("bench", "overhead", "cluster=sandbox", "cluster.nodes=2", "bench.repetitions=1")
    done = launch_on(sandbox, workdir, *words, "cluster.gpus_per_node=0", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "srun torchrun by hand" in done.stdout and "on 2 nodes" in done.stdout
    assert "pair 0" in done.stderr and "pair 1" in done.stderr
    refused = launch_on(sandbox, workdir, *words, "cluster.partition=nowhere")
    assert refused.returncode == 3 and "Invalid partition" in refused.stderr.splitlines()[-1]
