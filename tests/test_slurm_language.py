"""Node lists, directives, queues, the environment of a job."""

import subprocess
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import LauncherError
from launcher.slurm.allocation import allocation, copies, outside_of_jobs
from launcher.slurm.directives import as_arguments, as_header
from launcher.slurm.fate import out_of_memory
from launcher.slurm.hostlist import HostListError, compress, expand
from launcher.slurm.queue import Job, parse_sacct, parse_squeue
from launcher.slurm.reasons import wait_of
from launcher.slurm.unreachable import with_hint


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("gpu[001-003,7],login", ["gpu001", "gpu002", "gpu003", "gpu7", "login"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("node[2,9-10]", ["node2", "node9", "node10"]),
        ("a-[1-2]-b.c", ["a-1-b.c", "a-2-b.c"]),
        ("n[99-101]", ["n99", "n100", "n101"]),
    ],
)
def test_node_lists_expand_in_their_own_order(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["", "gpu[10-8]", "node[1-3", "node1-3]", "a,,b", ",a", "a,", "n[]", "n[1,]", "n[a-b]", "n[1-999999999]", "[[1]]"],
)
def test_a_broken_node_list_is_an_error_never_an_odd_host(text: str) -> None:
    with pytest.raises(HostListError):
        expand(text)


_names = st.from_regex(r"[a-z][a-z0-9-]{0,5}", fullmatch=True)


@given(
    st.lists(st.tuples(_names, st.lists(st.integers(0, 999), min_size=1, max_size=5), st.integers(1, 4)), min_size=1)
)
def test_any_list_of_numbered_hosts_comes_out_whole(groups: list[tuple[str, list[int], int]]) -> None:
    text = ",".join(f"{name}[{','.join(f'{n:0{width}}' for n in numbers)}]" for name, numbers, width in groups)
    assert expand(text) == [f"{name}{n:0{width}}" for name, numbers, width in groups for n in numbers]


@given(st.text("abn[]0123,-", max_size=12))
def test_any_text_expands_to_plain_names_or_is_refused(text: str) -> None:
    try:
        hosts = expand(text)
    except HostListError:
        return
    assert hosts and all(host and not set(host) & set("[],") for host in hosts)


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=("Cs",)), min_size=1))
@settings(max_examples=40)  # each starts a process
def test_a_shell_reads_any_directive_as_it_was_meant_but_for_sbatchs_escapes(value: str) -> None:
    """sbatch, unlike a shell, takes a backslash for an escape in single quotes; tests/test_fidelity.py asks sbatch."""
    (line,) = as_header({"job-name": value})
    argument = line.removeprefix("#SBATCH ")
    read = subprocess.run(["sh", "-c", f"printf %s {argument}"], capture_output=True, check=True).stdout.decode()
    assert [read.replace("\\\\", "\\")] == as_arguments({"job-name": value})


def test_a_flag_has_no_value() -> None:
    assert as_header({"requeue": True, "nodes": 2}) == ["#SBATCH --requeue", "#SBATCH --nodes=2"]


SQUEUE = """\
46565092|PENDING|PartitionNodeLimit||N/A|N/A|1:00:00|main|9|1:00:00|N/A
46565098_1|PENDING|Priority||2026-11-30T20:17:00|2026-11-30T20:27:00|10:00|main|4|10:00|gres:gpu:a100:2
46565093|RUNNING|None|node[1-2]|2026-11-30T19:07:24|2026-11-30T20:07:24|59:56|main|2|1:00:00|N/A
14|NEWSTATE|None||N/A|N/A|UNLIMITED|main|1|UNLIMITED|N/A
squestion
"""
"""As 22.05 prints it, but for the two last lines."""


def test_squeue_and_sacct_are_read_and_an_unknown_state_is_no_end() -> None:
    queue = parse_squeue(SQUEUE)
    never, waits, runs, new = queue["46565092"], queue["46565098_1"], queue["46565093"], queue["14"]
    assert (never.queued, never.reason, never.starts_at) == (True, "PartitionNodeLimit", None)
    assert never.asks == {"partition": "main", "nodes": "9", "time": "1:00:00", "gres": "N/A"}
    assert waits.starts_at == datetime(2026, 11, 30, 20, 17).timestamp()
    assert (runs.active, runs.nodes, runs.reason, runs.left_s) == (True, "node[1-2]", "", 3596)
    assert not (new.ended or new.active or new.queued) and new.left_s is None
    ended = parse_sacct("12|CANCELLED by 1000|n1|2026-11-30T20:17:00\n13|COMPLETED|None assigned|Unknown\n")
    assert (ended["12"].state, ended["12"].ended, ended["13"].nodes) == ("CANCELLED", True, "")
    assert (ended["12"].ends_at, ended["13"].ends_at) == (waits.starts_at, None)


def test_waiting_tasks_of_an_array_stand_in_one_line_of_sacct() -> None:
    assert parse_sacct("7_[0,4-5%2]|PENDING|None assigned|Unknown\n8_[1-2]|PENDING||Unknown\n").keys() == {
        "7_0", "7_4", "7_5", "8_1", "8_2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("", "waits", "the scheduler has not looked at it yet"),
        ("Resources", "waits", "waits for free nodes"),
        ("PartitionTimeLimit", "never", "so much time"),
        ("DependencyNeverSatisfied", "never", "did not end as it had to"),
        ("JobHeldUser", "held", "held by its user"),
        ("job requeued in held state", "held", "requeued and held"),
        ("job_requeued_in_held_state", "held", "requeued and held"),
        ("launch failed requeued held", "held", "could not be launched"),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-3]", "waits", "down, drained or reserved"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in …", "waits", "down, drained or reserved"),
        ("QOSMaxGRESPerUser", "waits", "your jobs use all that they may"),
        ("MaxJobsPerAccount", "waits", "your jobs use all that they may"),
        ("AssocMaxGRESPerJob", "never", "more than a job of its account may have"),
        ("QOSMaxWallDurationPerJobLimit", "never", "more than a job of its QOS may have"),
        ("QOSMinGRES", "never", "less than a job of its QOS has to"),
        ("AssocGrpGRES", "waits", "its account uses all that it may"),
        ("QOSGrpGRESMinutes", "waits", "the budget of its QOS is used up"),
        ("QOSUsageThreshold", "waits", "above the threshold"),
        ("SomethingNew", "waits", ""),
    ],
)
def test_why_a_job_waits_is_said_in_words_and_whether_waiting_helps(reason: str, kind: str, words: str) -> None:
    wait = wait_of(Job("PENDING", reason))
    assert wait.kind == kind
    assert words in wait.words and bool(wait.words) == bool(words)


def test_a_job_in_a_held_state_is_held_whatever_the_reason_says() -> None:
    assert wait_of(Job("REQUEUE_HOLD", "")).kind == wait_of(Job("SPECIAL_EXIT", "NonZeroExitCode")).kind == "held"


_numbers = st.sampled_from(["", "0", "9", "09", "10", "99", "100"])


@given(st.lists(st.tuples(st.sampled_from(["a", "gpu-", "n1x"]), _numbers), min_size=1))
def test_a_compressed_node_list_expands_to_the_same_hosts_in_the_same_order(parts: list[tuple[str, str]]) -> None:
    hosts = ["".join(part) for part in parts]
    assert expand(compress(hosts)) == list(dict.fromkeys(hosts))


def test_neighbours_of_a_node_list_are_a_range() -> None:
    assert compress(["gpu001", "gpu002", "gpu003", "gpu7", "login", "n99", "n100"]) == "gpu[001-003,7],login,n[99-100]"


def _job(**more: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": "7", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "node[2,9-10]", **more}


def test_a_task_knows_its_job_its_node_and_all_hosts() -> None:
    found = allocation(_job(SLURM_RESTART_COUNT="2"))
    assert found is not None
    assert (found.job_id, found.node, found.hosts, found.restarts) == ("7", 1, ("node2", "node9", "node10"), 2)


def test_an_array_task_is_named_by_array_and_index_even_where_the_job_id_is_the_arrays() -> None:
    found = allocation(_job(SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3"))
    assert found is not None
    assert found.job_id == "7_3"


def test_outside_of_a_job_there_is_no_allocation_and_a_contradiction_is_an_error() -> None:
    assert allocation({}) is None
    with pytest.raises(LauncherError):
        allocation(_job(SLURM_NODEID="3"))


def test_of_the_copies_that_srun_starts_the_first_knows_how_many_there_are() -> None:
    assert copies({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}) == 4
    assert copies({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}) == 1
    assert copies({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) == 1
    assert copies({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == 1  # in a batch script there is one
    assert copies({}) == 1


def test_a_new_job_inherits_nothing_of_the_job_it_is_submitted_from_but_finds_its_controller() -> None:
    inside = _job(SLURM_CPU_BIND="mask", SLURM_CONF="/etc/s.conf", RANK="3", MASTER_PORT="1", CUDA_VISIBLE_DEVICES="0",
                  PMIX_RANK="1", WORLD_SIZE="2", HOME="/h", RANKING="mine", SBATCH_ACCOUNT="lab")  # fmt: skip
    kept = {"SLURM_CONF": "/etc/s.conf", "HOME": "/h", "RANKING": "mine", "SBATCH_ACCOUNT": "lab"}
    assert outside_of_jobs(inside) == kept
    assert outside_of_jobs({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    "said",
    [
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=45066700.0. Some of your processes may have been",
        "slurmstepd: error: Detected 2 oom_kill events in StepId=7.13. Some of the step tasks have been OOM Killed.",
        "slurmstepd-node1: error: StepId=45060962.0 exceeded memory limit (349429760 > 209715200), being killed",
        "srun: error: node1: task 0: Out Of Memory",
    ],
)
def test_slurms_words_for_too_little_memory_are_known(said: str) -> None:
    """22.05 says all but the second here, which is of later versions (nextflow-io/nextflow issue 5932)."""
    assert out_of_memory(f"before\n{said}\nafter")
    assert not out_of_memory("iteration 3: memory limit, oom, killed\nslurmstepd: error: *** STEP 7.0 CANCELLED AT …")


@pytest.mark.parametrize(
    "said",
    [
        "scontrol: fatal: Could not establish a configuration source",
        "_establish_config_source: failed to fetch config",
    ],
)
def test_a_machine_without_a_cluster_is_told_from_a_controller_that_is_down(said: str) -> None:
    assert with_hint(said).startswith(said) and "log in to your cluster" in with_hint(said)
    assert with_hint("Unable to contact slurm controller") == "Unable to contact slurm controller"
