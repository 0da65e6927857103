"""What is looked at on a node before the ranks start; the GPUs are nvidia-ml-py's, over a fake of the driver alone."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.compose import compose
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.node import processes
from launcher.node.place import Place
from launcher.node.preflight import gpus, machine, network, places, run
from launcher.node.preflight.topic import Topic
from launcher.node.preflight.wanted import Wanted, wanted
from launcher.plan.build import Here, build
from launcher.records import preflight as records
from launcher.records.preflight import Facts, Finding, NodeReport, as_lines, compare, from_lines
from tests.conftest import ROOT, Launch
from tests.fake_nvml import FakeDriver
from tests.sandbox import Sandbox
from tests.test_slurm import launch_on

GIB = 2**30


def look(**wishes: Any) -> NodeReport:
    return asyncio.run(run.preflight(replace(Wanted("here"), **wishes)))


def found(report: NodeReport) -> list[tuple[str, str]]:
    return [(finding.check, finding.severity) for finding in report.findings]


ON_CUDA: dict[str, Any] = {"device": "cuda", "gpus": 4}


def test_four_healthy_gpus_are_nothing_to_speak_of(driver: FakeDriver) -> None:
    report = look(**ON_CUDA)
    assert found(report) == []
    seen = report.facts["gpus"]
    assert (len(seen["gpus"]), seen["peers"][0], seen["gpus"][3]["nvlinks"]) == (4, "-111", 18)


@pytest.mark.parametrize(
    ("fault", "check", "severity", "words"),
    [
        ({"gpus": 3}, "gpu-count", "error", "3 GPUs here, 3 of them for this run, and 4 are asked for"),
        ({"2.lost": 1}, "gpu-lost", "error", "GPU 2: GPU is lost"),
        ({"1.recovery": 1}, "gpu-recovery", "error", "GPU 1 (Fake H100): the driver demands a reset"),
        ({"1.ecc_uncorrected": 2}, "gpu-ecc", "error", "GPU 1 (Fake H100): 2 uncorrected memory errors"),
        ({"0.remap_pending": 1}, "gpu-remap", "warning", "GPU 0 (Fake H100): a bad row"),
        ({"0.retired_pending": 1}, "gpu-remap", "warning", "waits to be replaced"),
        ({"0.remap_failed": 1}, "gpu-remap", "error", "could not be replaced"),
        ({"3.throttle": 0x48}, "gpu-throttle", "warning", "GPU 3 (Fake H100): its clocks are low, hardware slowdown"),
        ({"3.processes": 1}, "gpu-processes", "warning", "GPU 3 (Fake H100): in use by process 1 "),
        ({"2.used": 20 * GIB}, "gpu-memory", "warning", "20.0 of 80.0 GiB are in use"),
        ({"2.used": 79 * GIB}, "gpu-memory", "error", "79.0 of 80.0 GiB are in use"),
        ({"init": 9}, "gpu-driver", "error", "there is no NVIDIA driver here, and 4 GPUs are asked for"),
        ({"init": 18}, "gpu-driver", "error", "version mismatch"),
    ],
)
def test_a_fault_of_a_gpu_is_one_line_with_the_gpu_and_what_to_do(
    driver: FakeDriver, fault: dict[str, int], check: str, severity: str, words: str
) -> None:
    driver.says({"gpus": 4, **fault})
    (finding,) = look(**ON_CUDA).findings
    assert (finding.check, finding.severity, finding.host) == (check, severity, "here")
    assert words in finding.message and "\n" not in finding.message
    assert finding.message.endswith(next(one.fix for one in run.CHECKS if one.id == check))


@pytest.mark.parametrize(
    ("wiring", "paths"),
    [
        ({}, [["-", "NV18"], ["NV18", "-"]]),  # through a switch, which takes all links
        ({"0.1.direct": 4, "1.0.direct": 4}, [["-", "NV4"], ["NV4", "-"]]),
        ({"0.1.by_nvlink": 0, "1.0.by_nvlink": 0, "0.1.level": 10, "1.0.level": 10}, [["-", "PIX"], ["PIX", "-"]]),
        ({"0.links": 0, "1.links": 0, "0.1.level": 50, "1.0.level": 40}, [["-", "SYS"], ["NODE", "-"]]),
        ({"0.lost": 1}, [["-", "-"], ["-", "-"]]),
    ],
)
def test_how_gpus_reach_each_other_is_told_as_nvidia_smi_tells_it(
    driver: FakeDriver, wiring: dict[str, int], paths: list[list[str]]
) -> None:
    driver.says({"gpus": 2, **wiring})
    assert look(device="cuda", gpus=2).facts["gpus"]["paths"] == paths


def test_interfaces_are_described_as_the_kernel_does() -> None:
    seen = look().facts["interfaces"]
    assert {*seen["links"]} == {*seen["interfaces"]} and seen["links"]["lo"]["mtu"] > 1000


def test_a_power_cap_and_idleness_are_no_faults(driver: FakeDriver) -> None:
    driver.says({"gpus": 4, "0.throttle": 0x1, "1.throttle": 0x4})
    assert found(look(**ON_CUDA)) == []


def test_a_driver_that_hangs_is_named_at_the_deadline_and_nothing_waits_for_it(driver: FakeDriver) -> None:
    driver.says({"gpus": 4, "slow.nvmlDeviceGetCount_v2": 600_000})
    began = time.monotonic()
    report = asyncio.run(run.preflight(Wanted("here", **ON_CUDA), budget_s=1.0))
    assert time.monotonic() - began < 3
    (finding,) = report.findings
    assert (finding.check, finding.severity) == ("gpu-driver", "error")
    assert "hangs, NVML did not answer within 1 s" in finding.message
    assert {"machine", "names", "software"} <= report.facts.keys()  # the other checks have not suffered
    deadline = time.monotonic() + 5
    while any("launcher.node.nvml" in _command_line(pid) for pid in processes.children(os.getpid())):
        assert time.monotonic() < deadline, "the process that asks NVML is still there"
        time.sleep(0.02)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("wishes", "severities"),
    [
        ({"device": "cuda", "gpus": 2}, ["error"]),
        ({"device": "cuda", "gpus": None}, ["error"]),
        ({"device": "auto", "gpus": 2}, ["warning"]),  # the ranks would train on the CPU
        ({"device": "auto", "gpus": 0}, []),
        ({"device": "cpu", "gpus": 2}, []),
    ],
)
def test_without_a_driver_it_depends_on_who_needs_one(
    driver: FakeDriver, wishes: dict[str, Any], severities: list[str]
) -> None:
    driver.says({"init": 9})
    assert [severity for _, severity in found(look(**wishes))] == severities


def test_a_missing_package_is_no_missing_driver(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = look(**ON_CUDA)
    assert found(report) == [("gpu-unknown", "warning")]
    assert "pip install nvidia-ml-py" in report.findings[0].message


def test_only_the_gpus_that_the_ranks_see_count(driver: FakeDriver) -> None:
    driver.says({"gpus": 4, "0.processes": 1, "1.ecc_uncorrected": 5})
    report = look(device="cuda", gpus=2, environment={"CUDA_VISIBLE_DEVICES": "2,GPU-fake-3"})
    assert found(report) == []
    report = look(device="cuda", gpus=2, environment={"CUDA_VISIBLE_DEVICES": "2,7"})
    assert found(report) == [("gpu-count", "error")]
    assert "CUDA_VISIBLE_DEVICES=2,7" in report.findings[0].message


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", [2, 0]),
        ("0,9,1", [0]),  # CUDA stops at the first that is not there
        ("GPU-b,GPU-a1", [1, 0]),  # a beginning will do
        ("GPU-", []),  # of several
        ("MIG-c7,MIG-c8", [2, 2]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(visible: str | None, indices: list[int]) -> None:
    there: list[dict[str, Any]] = [{"index": 0, "uuid": "GPU-a1"}, {"index": 1, "uuid": "GPU-b2"}]
    there.append({"index": 2, "uuid": "GPU-c3", "mig": ["MIG-c7", "MIG-c8"]})
    assert [gpu["index"] for gpu in gpus.chosen(there, visible)] == indices


def judged(topic: Topic, facts: dict[str, Any], **wishes: Any) -> list[tuple[str, str]]:
    """What is said of facts that this machine does not have."""
    findings = topic.judge(replace(Wanted("here"), **wishes), {topic.name: facts})
    return [(finding.check, finding.severity) for finding in findings]


@pytest.mark.parametrize(
    ("built", "driver_knows", "fits"), [("12.8", 12080, True), ("12.8", 12020, True), ("13.0", 12080, False)]
)
def test_a_driver_that_is_too_old_for_torch_is_named(built: str, driver_knows: int, fits: bool) -> None:
    seen: Facts = {"gpus": {"state": "ok", "gpus": [], "cuda": driver_knows}, "software": {"cuda": built}}
    findings = list(gpus.TOPIC.judge(Wanted("here"), seen))
    assert [finding.check for finding in findings] == ([] if fits else ["gpu-cuda"])


MACHINE: dict[str, Any] = {
    "cpus": 16, "memory_total_mb": 64000, "memory_free_mb": 60000, "shm_mb": 32000, "shm_free_mb": 32000,
    "open_files": None, "locked_mb": None, "adapters": ["mlx5_0"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        ({}, []),
        ({"cpus": 3}, ["cpu-mask"]),
        ({"cpus": 10}, ["cpu-mask"]),  # enough for the ranks, and fewer than asked for
        ({"memory_free_mb": 30000}, ["memory"]),
        ({"shm_mb": 64, "shm_free_mb": 64}, ["shm"]),
        ({"open_files": 256}, ["open-files"]),
        ({"locked_mb": 8}, ["locked-memory"]),
        ({"locked_mb": 8, "adapters": []}, []),
    ],
)
def test_a_machine_that_is_too_small_is_said(change: dict[str, Any], checks: list[str]) -> None:
    said = judged(machine.TOPIC, {**MACHINE, **change}, ranks=4, cpus=12, memory_mb=40000)
    assert said == [(check, "warning") for check in checks]


@pytest.mark.parametrize(("offset_s", "checks"), [(None, []), (-3.0, []), (-3600.0, [("clock", "warning")])])
def test_a_clock_that_is_off_the_leaders_is_said(offset_s: float | None, checks: list[tuple[str, str]]) -> None:
    leader = None if offset_s is None else time.time() - offset_s
    assert found(look(leader_time=leader)) == checks


@pytest.mark.parametrize(
    ("free", "said"),
    [
        ({"free_mb": 3000, "free_inodes": None}, []),
        ({"free_mb": 1500, "free_inodes": 10**6}, [("disk-room", "warning")]),
        ({"free_mb": 3, "free_inodes": 10**6}, [("disk-room", "error")]),
        ({"free_mb": 3000, "free_inodes": 2000}, [("disk-inodes", "warning")]),
        ({"free_mb": 3000, "free_inodes": 0}, [("disk-inodes", "error")]),
    ],
)
def test_a_full_file_system_is_said(free: dict[str, Any], said: list[tuple[str, str]]) -> None:
    assert judged(places.RUN_DIR_TOPIC, {"path": "/runs/a", "problem": "", **free}) == said


def test_directories_are_tried_out_and_left_as_they_were(tmp_path: Path) -> None:
    assert found(look(run_dir=str(tmp_path / "runs" / "later"), scratch=str(tmp_path))) == []
    assert not list(tmp_path.iterdir())
    report = look(run_dir="/proc/nix", scratch="$NOT_SET_HERE/x")
    assert [check for check, _ in found(report)] == ["run-dir", "scratch"]
    assert report.findings[0].message.startswith("/proc/nix: ")
    assert "variables is not set" in report.findings[1].message


def test_a_master_that_leads_nowhere_is_named_on_the_others_only() -> None:
    elsewhere = {"environment": {"GLOO_SOCKET_IFNAME": "lo"}}  # whatever this machine's own name is
    report = look(hosts=("localhost", "here"), **elsewhere)
    assert found(report) == [("master-name", "error")]
    assert (
        "the master localhost resolves to" in report.findings[0].message and "(loopback)" in report.findings[0].message
    )
    report = look(hosts=("no-such-host.invalid", "here"), **elsewhere)
    assert "the master no-such-host.invalid is unknown here" in report.findings[0].message
    assert found(look(hosts=("here", "there"), **elsewhere)) == []  # this one is the master
    assert found(look(hosts=("here",))) == []


def names(**own: Any) -> dict[str, Any]:
    fine = {"name": "here", "addresses": ["10.0.0.2"], "route": True, "seconds": 0.0}
    return {"master": {**fine, "name": "first"}, "own": {**fine, **own}}


@pytest.mark.parametrize(
    ("own", "wishes", "said"),
    [
        ({}, {}, []),
        ({"addresses": ["127.0.1.1"]}, {"device": "cpu"}, [("own-name", "error")]),  # gloo is all there is
        ({"addresses": ["127.0.1.1"]}, {"device": "auto", "gpus": 0}, [("own-name", "error")]),
        ({"addresses": ["::1", "127.0.1.1"]}, {"device": "cuda"}, [("own-name", "warning")]),
        ({"addresses": ["127.0.1.1"]}, {"environment": {"GLOO_SOCKET_IFNAME": "eth0"}}, []),
        ({"addresses": ["fe80::1%eth0"], "route": False}, {"device": "cpu"}, [("own-name", "error")]),
        ({"seconds": 4.2}, {}, [("name-speed", "warning")]),
    ],
)
def test_a_name_of_its_own_that_others_cannot_use_is_said(
    own: dict[str, Any], wishes: dict[str, Any], said: list[tuple[str, str]]
) -> None:
    assert judged(network.NAMES, names(**own), hosts=("first", "here"), **wishes) == said


def test_slow_look_ups_are_said() -> None:
    assert judged(network.REVERSE_NAMES, {"seconds": 0.9}) == []
    assert judged(network.REVERSE_NAMES, {"seconds": 27.0}) == [("name-speed", "warning")]
    late = network.REVERSE_NAMES.late(Wanted("here"), "reverse_names", 5.0)
    assert (late.check, late.severity) == ("name-speed", "warning")


@pytest.mark.parametrize(
    ("environment", "checks"),
    [
        ({"NCCL_SOCKET_IFNAME": "=eth1"}, ["interface"]),
        ({"NCCL_SOCKET_IFNAME": "=eth1,ib0"}, []),
        ({"NCCL_SOCKET_IFNAME": "=ib"}, ["interface"]),
        ({"NCCL_SOCKET_IFNAME": "ib"}, []),  # a beginning
        ({"NCCL_SOCKET_IFNAME": "^docker,lo"}, []),
        ({"GLOO_SOCKET_IFNAME": "ib"}, ["interface"]),
        ({"GLOO_SOCKET_IFNAME": "ib0,eth1"}, ["interface"]),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, []),
        ({"NCCL_IB_HCA": "=mlx5_0:1"}, []),
        ({"NCCL_IB_HCA": "=mlx5_7:1"}, ["adapter"]),
        ({"NCCL_IB_HCA": "mlx5"}, []),
        ({"NCCL_IB_HCA": "^=mlx5_7"}, []),
    ],
)
def test_interfaces_and_adapters_are_looked_for_as_nccl_and_gloo_read_them(
    environment: dict[str, str], checks: list[str]
) -> None:
    seen = {"interfaces": ["lo", "ib0"], "adapters": ["mlx5_0"]}
    assert [check for check, _ in judged(network.INTERFACES, seen, environment=environment)] == checks


def test_an_interpreter_or_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    report = look(python="/nix/python", script=str(tmp_path / "train.py"))
    assert found(report) == [("python", "error"), ("script", "error")]
    assert report.findings[0].message.startswith("/nix/python: No such file")


def test_another_interpreter_is_asked_itself(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    seen = look(python=str(link)).facts["software"]
    assert seen["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_check_that_hangs_or_crashes_is_a_warning_and_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: Wanted, __: float) -> dict[str, Any]:
        threading.Event().wait()
        return {}

    def crash(_: Wanted, __: float) -> dict[str, Any]:
        raise ZeroDivisionError("oh")

    def judge(_: Wanted, __: Facts) -> Iterator[Finding]:
        raise AssertionError("there is nothing to judge")

    topics = (Topic("hangs", hang, judge, 0.2), Topic("crashes", crash, judge), machine.CLOCK_TOPIC)
    monkeypatch.setattr(run, "TOPICS", topics)
    report = look()
    assert found(report) == [("not-checked", "warning")] * 2
    assert {finding.message.split(":")[0] for finding in report.findings} == {"hangs", "crashes"}
    assert report.facts.keys() == {"clock"} and report.seconds < 5


def test_all_of_it_takes_well_under_a_second(driver: FakeDriver, tmp_path: Path) -> None:
    wishes = {**ON_CUDA, "run_dir": str(tmp_path), "scratch": str(tmp_path), "python": sys.executable}
    assert min(look(**wishes).seconds for _ in range(3)) < 0.7


def test_a_plan_says_what_it_wants_of_each_node() -> None:
    overrides = ("cluster=a100x2", "cluster.nodes=2", "cluster.scratch=/scratch", "cluster.network_interface=ib0")
    plan = build(compose(overrides).config, Here("the-run", Path("/runs"), Path("/work"), "/python"))
    wish = wanted(plan, Place(1, ("a", "b"), "1", "1"), leader_time=5.0)
    assert (wish.host, wish.master, wish.several, wish.gpus, wish.ranks) == ("b", "a", True, 2, 2)
    assert (wish.run_dir, wish.scratch, wish.python, wish.leader_time) == ("/runs/the-run", "/scratch", "/python", 5.0)
    assert wish.environment["NCCL_SOCKET_IFNAME"] == "=ib0"
    here = build(compose([]).config, Here("the-run", Path("/runs"), Path("/work"), "/python"))
    assert wanted(here, Place(0, ("a",), "1")).gpus is None  # those that are there


reports = st.builds(
    NodeReport, st.text(), st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers() | st.text())),
    st.lists(st.builds(Finding, st.text(), st.text(), st.text(), st.text())).map(tuple), st.floats(0, 9),
)  # fmt: skip


@given(st.lists(reports, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_reports_come_whole_through_an_output_that_nodes_share_with_a_noisy_shell(
    them: list[NodeReport], random: Any
) -> None:
    waiting = [as_lines(node, report) for node, report in enumerate(them)] + [["module loaded", "preflight", ""]]
    lines: list[str] = []
    while waiting := [rest for rest in waiting if rest]:
        lines.append(random.choice(waiting).pop(0))
    assert all(len(line) < 1024 for line in lines)
    assert from_lines("\n".join(lines)) == dict(enumerate(them))


def test_a_report_that_was_cut_off_is_no_report() -> None:
    lines = as_lines(0, NodeReport("a", {"x": {"y": "z" * 5000}}))
    assert len(lines) > 1 and from_lines("\n".join(lines[:-1])) == {}


def node(host: str, **facts: Any) -> NodeReport:
    gpu = {"index": 0, "name": "H100", "memory_total": 80 * GIB, "nvlinks": 18}
    usual: dict[str, dict[str, Any]] = {
        "software": {"python": "3.11.7", "torch": "2.13.0", "nccl": "2.29.3", "launcher": "1", "script": "c0ffee"},
        "gpus": {"driver": "570", "gpus": [gpu, {**gpu, "index": 1}], "peers": ["-1", "1-"]},
        "clock": {"time": 1000.0, "offset_s": 0.0},
    }
    return NodeReport(host, {name: {**content, **facts.get(name, {})} for name, content in usual.items()})


SMALL = {"index": 0, "name": "H100", "memory_total": 40 * GIB, "nvlinks": 18}


@pytest.mark.parametrize(
    ("facts", "check", "severity", "words"),
    [
        ({"software": {"torch": "2.12.0"}}, "odd-versions", "error", "torch 2.12.0 here and 2.13.0 on 3 of 4 nodes"),
        ({"software": {"nccl": "2.27.0"}}, "odd-versions", "error", "NCCL 2.27.0"),
        ({"software": {"python": "3.12.1"}}, "odd-versions", "warning", "Python 3.12.1"),
        ({"software": {"script": "beef"}}, "odd-script", "error", "checksum beef"),
        ({"gpus": {"driver": "535"}}, "odd-driver", "warning", "the driver 535 here"),
        ({"gpus": {"gpus": [SMALL, SMALL]}}, "odd-gpus", "warning", "2 × H100 40 GiB here and 2 × H100 80 GiB on"),
        ({"gpus": {"peers": ["-0", "0-"]}}, "odd-links", "warning", "peers -0 0- here"),
        ({"clock": {"offset_s": 90.0}}, "clock", "warning", "+90 s"),
    ],
)
def test_the_node_that_is_unlike_the_others_is_named(
    facts: dict[str, Any], check: str, severity: str, words: str
) -> None:
    (finding,) = compare([node("a"), node("b"), node("c", **facts), node("d")])
    assert (finding.host, finding.check, finding.severity) == ("c", check, severity)
    assert words in finding.message


def test_nodes_that_are_alike_or_cannot_tell_are_left_in_peace() -> None:
    assert compare([]) == [] == compare([node("a")]) == compare([node("a"), node("b")])
    assert compare([node("a"), NodeReport("silent"), node("b")]) == []


def test_where_two_kinds_are_as_frequent_node_0_is_the_usual_one() -> None:
    (finding,) = compare([node("a"), node("b", gpus={"driver": "535"})])
    assert finding.host == "b"


def test_clocks_are_compared_as_they_are_only_where_all_were_read_at_once() -> None:
    late = [node("a"), node("b", clock={"time": 1200.0, "offset_s": None})]
    assert compare(late) == []
    assert [finding.check for finding in compare(late, at_once=True)] == ["clock"]


CHECKS = {check.id: check for check in (*run.CHECKS, *records.CHECKS)}


def test_the_table_in_the_documentation_is_what_the_code_looks_for() -> None:
    text = (ROOT / "docs" / "diagnosis.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    said = {check: (what, severity, fix) for check, what, severity, fix in rows}
    assert said == {check.id: (check.what, ", ".join(check.severities), check.fix) for check in CHECKS.values()}
    assert len(CHECKS) == len(run.CHECKS) + len(records.CHECKS)  # no id twice


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("watch.preflight_seconds=0", "too small"),
        ("watch.preflight=ful", "preflight"),
        ("watch.probe_seconds=0", "too small"),
    ],
)
def test_settings_that_make_no_sense_are_refused(override: str, answer: str) -> None:
    with pytest.raises(UserError, match=answer):
        validate(compose([override]).config)


def test_the_preflight_can_be_turned_off() -> None:
    assert compose(["watch.preflight=off"]).config.watch.preflight.value == "off"


ONE = "cluster.nproc_per_node=1"  # this machine may have few processors


def test_doctor_names_what_is_wrong_with_this_machine(driver: FakeDriver, launch: Launch) -> None:
    driver.says({"gpus": 2, "1.ecc_uncorrected": 7, "0.throttle": 0x40})
    asked = ("cluster.device=cuda", "cluster.gpus_per_node=2", ONE, "cluster.env.GLOO_SOCKET_IFNAME=nix0")
    done = launch("doctor", *asked)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NODE", "CHECK", "SEVERITY", "MESSAGE"]
    assert [line.split()[1:3] for line in lines[1:4]] == [
        ["gpu-ecc", "error"],
        ["interface", "error"],
        ["gpu-throttle", "warning"],
    ]
    assert re.search(r": 2 errors, 1 warning$", lines[-1])


def test_doctor_of_a_healthy_machine_ends_well_and_writes_nothing(launch: Launch, workdir: Path) -> None:
    done = launch("doctor", "cluster.device=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no errors" in done.stdout
    assert not list(workdir.iterdir())


def test_doctor_tells_programs_everything(driver: FakeDriver, launch: Launch) -> None:
    done = launch("doctor", "--json", "cluster.device=cuda", "cluster.gpus_per_node=5", ONE)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    (report,) = said["nodes"]
    assert len(report["facts"]["gpus"]["gpus"]) == 4
    assert [finding["check"] for finding in said["findings"]] == ["gpu-count"]
    assert NodeReport.from_message(report).errors


@pytest.mark.slurm
def test_doctor_asks_the_nodes_of_a_cluster(sandbox: Sandbox, workdir: Path) -> None:
    ask = ("doctor", "cluster=sandbox", "cluster.nodes=2", "cluster.nodelist='node[2-3]'")
    done = launch_on(sandbox, workdir, *ask, "--json", "cluster.setup=[echo noise, cat]")  # cat reads all it is given
    assert done.returncode == 0, done.stdout + done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert [report["host"] for report in nodes] == ["node2", "node3"]
    assert [report["facts"]["names"]["master"]["name"] for report in nodes] == ["node2"] * 2
    assert all(report["facts"]["software"]["torch"] for report in nodes)
    done = launch_on(sandbox, workdir, *ask, "cluster.env.GLOO_SOCKET_IFNAME=nix0")
    assert done.returncode == 1, done.stdout + done.stderr
    said = [line.split()[:3] for line in done.stdout.splitlines()]
    assert ["node2", "interface", "error"] in said and ["node3", "interface", "error"] in said
    assert "looked at node2, node3 in" in done.stdout


@pytest.mark.slurm
def test_doctor_says_in_one_line_that_slurm_refuses(sandbox: Sandbox, workdir: Path) -> None:
    done = launch_on(sandbox, workdir, "doctor", "cluster=sandbox", "cluster.partition=nix")
    assert done.returncode == 3
    assert "invalid partition" in done.stderr.splitlines()[-1].lower()


def test_versions_are_those_that_python_would_import(tmp_path: Path) -> None:
    for name in ("torch-2.13.0+cu128.dist-info", "nvidia_nccl_cu12-2.27.3.dist-info", "torchvision-0.9.dist-info"):
        (tmp_path / name).mkdir()
    program = ROOT / "launcher/node/preflight/versions.py"
    done = subprocess.run(
        [sys.executable, str(program)], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=True
    )
    said = json.loads(done.stdout)
    assert (said["torch"], said["cuda"], said["nccl"]) == ("2.13.0+cu128", "12.8", "2.27.3")
