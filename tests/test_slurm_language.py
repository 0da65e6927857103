"""Node lists, directives, queues, the environment of a job."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import LauncherError
from launcher.slurm.allocation import allocation, outside_of_jobs
from launcher.slurm.directives import as_arguments, as_header
from launcher.slurm.fate import out_of_memory
from launcher.slurm.hostlist import HostListError, expand
from launcher.slurm.queue import parse_sacct, parse_squeue


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


def test_squeue_and_sacct_are_read_and_an_unknown_state_is_no_end() -> None:
    queue = parse_squeue("12|PENDING|Resources|\n13_4|RUNNING|None|n[1-2]\n14|NEWSTATE|None|\nsquestion\n")
    assert (queue["12"].queued, queue["12"].reason) == (True, "Resources")
    assert (queue["13_4"].active, queue["13_4"].nodes, queue["13_4"].reason) == (True, "n[1-2]", "")
    assert not (queue["14"].ended or queue["14"].active or queue["14"].queued)
    ended = parse_sacct("12|CANCELLED by 1000|n1\n13|COMPLETED|None assigned\n")
    assert (ended["12"].state, ended["12"].ended, ended["13"].nodes) == ("CANCELLED", True, "")


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
