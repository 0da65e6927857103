"""The NCCL catalogue: what is in force, what is refused, which entry fits an error text."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.catalogue import matches
from launcher.config.compose import catalogue, compose
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.plan.build import Here, build
from launcher.plan.plan import Plan
from tests.conftest import Launch, environment, launcher_command

BUNDLE = ["p2p_off", "cumem_host_off"]
OURS = catalogue()
ENTRIES = OURS.entries()
SINGLE = [name for name in OURS.names() if not ENTRIES[name].bundle]
NEEDED = {"socket_interface": "cluster.network_interface=ib0", "ib_hca": "cluster.ib_hca='mlx5_0:1,mlx5_1:1'"}
VALUES = list(NEEDED.values())


def in_force(*overrides: str, config_dir: Path | None = None) -> list[str]:
    config = compose(overrides, [str(config_dir)] if config_dir else []).config
    validate(config)
    return list(config.nccl)


def plan_of(*overrides: str, config_dir: Path | None = None) -> Plan:
    config = compose(overrides, [str(config_dir)] if config_dir else []).config
    validate(config)
    return build(config, Here("the-run", Path("/runs"), Path("/work"), "/python"))


def own(directory: Path, name: str, text: str) -> Path:
    (directory / "nccl").mkdir(exist_ok=True)
    (directory / "nccl" / f"{name}.yaml").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("profile", "choice", "expected"),
    [
        ("p2p_off", None, ["p2p_off"]),
        ("p2p_off", "[ib_off]", ["ib_off"]),
        ("p2p_off", "ib_off", ["ib_off"]),
        ("p2p_off", "[]", []),
        ("p2p_off", "[+ib_off]", ["p2p_off", "ib_off"]),
        ("p2p_off,shm_off", "[-p2p_off,+ib_off]", ["shm_off", "ib_off"]),
        ("p2p_off", "[+p2p_off]", ["p2p_off"]),
        ("pcie_no_nvlink", None, BUNDLE),
        ("pcie_no_nvlink", "[-p2p_off]", ["cumem_host_off"]),
        ("p2p_off,shm_off", "[-pcie_no_nvlink]", ["shm_off"]),
        ("shm_off", "[+pcie_no_nvlink]", ["shm_off", *BUNDLE]),
    ],
)
def test_bare_names_replace_the_profiles_list_and_signed_ones_change_it(
    profile: str, choice: str | None, expected: list[str]
) -> None:
    chosen = [] if choice is None else [f"nccl={choice}"]
    assert in_force(f"cluster.nccl=[{profile}]", *chosen) == expected


@given(st.lists(st.sampled_from(SINGLE), unique=True), st.lists(st.sampled_from(SINGLE), unique=True))
@settings(max_examples=15)  # each composes
def test_what_is_added_and_then_removed_leaves_the_list_as_it_was(profile: list[str], more: list[str]) -> None:
    new = [name for name in more if name not in profile]
    signed = [f"nccl=[{','.join(f'{sign}{name}' for sign in '+-' for name in new)}]"] if new else []
    config = compose([f"cluster.nccl=[{','.join(profile)}]", *signed, *VALUES]).config
    assert set(config.nccl) == {*profile, "socket_interface", "ib_hca"} - set(new)


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["nccl=[p2p_of]"], "did you mean p2p_off?"),
        (["nccl=[../cluster/local]"], "there is no nccl entry"),
        (["nccl=[-p2p_off]"], "'p2p_off' is not in the profile's list; it is empty"),
        (["cluster.nccl=[shm_off]", "nccl=[-p2p_off]"], "in it are shm_off"),
        (["nccl=[+p2p_off,ib_off]"], "mixes names with and without a sign"),
        (["nccl=p2p_off,ib_off"], "write nccl=[a,b]"),
        (["nccl={p2p_off: 1}"], "write nccl=[a,b]"),
        (["nccl=["], "cannot read"),
        (["nccl=[p2p_off,p2p_level_loc]"], "'p2p_off' and 'p2p_level_loc' contradict each other"),
        (["nccl=[ib_off]", "cluster.ib_hca=mlx5_0"], "'ib_off' and 'ib_hca' contradict each other"),
        (["nccl=[socket_interface]"], "set cluster.network_interface"),
        (["nccl=[ib_hca]"], "set cluster.ib_hca"),
        (["nccl.p2p_off.hosts=gpu1"], "no key 'nccl.p2p_off'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(overrides: list[str], answer: str) -> None:
    with pytest.raises(UserError) as caught:
        in_force(*overrides)
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("symptoms: x", "did you mean symptom?"),
        ("env: [A]", "mine.yaml"),
        ("env: {A: '1'}\nbundle: [p2p_off]", "sets nothing itself"),
        ("bundle: [mine]", "stands for itself"),
        ("[a, b]", "mine.yaml"),
        ("symptom: [", "mine.yaml"),
        ("hosts: gpu[3-1]", "hosts: the range '3-1' falls"),
        ("env: {NCCL_P2P_DISABLE: '0'}", "NCCL_P2P_DISABLE is 1 and 0"),
        ("conflicts: [p2p_off]", "contradict each other"),
        ("env: {NCCL_P2P_DISABLE: '0'}\nhosts: gpu[1-2]", "NCCL_P2P_DISABLE is 1 and 0"),
    ],
)
def test_an_entry_of_the_users_own_is_checked_like_ours(tmp_path: Path, text: str, answer: str) -> None:
    with pytest.raises(UserError) as caught:
        in_force("nccl=[p2p_off,mine]", config_dir=own(tmp_path, "mine", text))
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_entries_for_different_hosts_do_not_contradict_each_other(tmp_path: Path) -> None:
    own(tmp_path, "one", "env: {NCCL_SOCKET_IFNAME: '=eth0'}\nhosts: gpu[01-04]")
    own(tmp_path, "two", "env: {NCCL_SOCKET_IFNAME: '=ib0'}\nhosts: gpu[05-08]")
    assert in_force("nccl=[one,two]", config_dir=tmp_path) == ["one", "two"]


@pytest.mark.parametrize("name", SINGLE)
def test_every_entry_says_what_it_sets_why_at_what_cost_and_who_says_so(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.env and entry.symptom and entry.cost and entry.source and entry.match
    assert all(other in SINGLE for other in entry.conflicts)
    in_force(f"nccl=[{name}]", *([NEEDED[name]] if name in NEEDED else []))


def test_a_key_of_the_profile_brings_the_entry_that_needs_it_whatever_the_list() -> None:
    values = plan_of("nccl=[p2p_off]", *VALUES).values()
    assert values["NCCL_SOCKET_IFNAME"] == "=ib0" and values["GLOO_SOCKET_IFNAME"] == "ib0"
    assert values["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert "NCCL_IB_HCA" not in plan_of("nccl=[-ib_hca]", *VALUES).values()


def test_the_dry_run_and_the_plan_tell_origin_reason_and_hosts(tmp_path: Path) -> None:
    own(tmp_path, "some", "symptom: they lie\nenv: {NCCL_P2P_DISABLE: '0'}\nhosts: gpu[1-2]")
    plan = plan_of("cluster=a100x2", "nccl=[some]", "cluster.env.NCCL_P2P_DISABLE='1'", config_dir=tmp_path)
    (line,) = [line for line in plan.describe_environment() if "NCCL_P2P" in line]
    assert line.split()[1:] == ["1", "(cluster", "a100x2)"]  # the cluster's own value, for all hosts, comes after it
    plan = plan_of("cluster=a100x2", "nccl=[some]", config_dir=tmp_path)
    (line,) = [line for line in plan.describe_environment() if "NCCL_P2P" in line]
    assert "(nccl some, on gpu[1-2] only: they lie)" in line
    assert Plan.from_json(plan.to_json()) == plan
    assert "NCCL_P2P_DISABLE" not in plan.values()


def test_the_debug_file_of_a_rank_lies_in_the_attempt_whatever_that_is_called() -> None:
    plan = plan_of("nccl=[debug_info]")
    assert plan.values("/runs/50% off/attempts/000")["NCCL_DEBUG_FILE"] == "/runs/50%% off/attempts/000/nccl.%h.%p.log"


def test_the_record_of_a_run_gives_the_same_entries_again_even_without_the_users_files(tmp_path: Path) -> None:
    own(tmp_path, "mine", "symptom: it is Monday\nenv: {NCCL_DEBUG: WARN}")
    profile = ["cluster.nccl=[mine]", "cluster.network_interface=eth0"]
    first = compose([*profile, "nccl=[+p2p_off,+ib_off]"], [str(tmp_path)])
    (tmp_path / "nccl" / "mine.yaml").unlink()
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "again.yaml").write_text(f"# @package _global_\n{first.yaml}")
    again = compose(["task=again"], [str(tmp_path)]).config
    assert again.nccl == first.config.nccl
    less = compose(["task=again", "nccl=[-mine,-ib_off]"], [str(tmp_path)]).config
    assert set(less.nccl) == {"p2p_off", "socket_interface"}


@pytest.mark.parametrize(
    ("text", "best"),
    [
        (
            "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.29.3\nncclSystemError\n"
            "Failed to bind NVLink SHARP (NVLS) Multicast\nmemory of size 2097152 : CUDA error 401",
            "nvls_off",
        ),
        ("NCCL WARN NET/IB : Got completion from peer 7.6.13.83<3> with status=12 opcode=1 vendor err 129", "ib_off"),
        ("NCCL WARN Call to ibv_reg_mr failed", "ib_off"),
        ("include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device", "shm_off"),
        ("misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes", "shm_off"),
        ("bootstrap.cc:37 NCCL WARN Bootstrap : no socket interface found", "socket_interface"),
        ("NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host)", "socket_interface"),
        ("NCCL WARN Net : Connect to 192.168.1.9<54263> failed : No route to host", "socket_interface"),
        ("NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 0), error", "cumem_host_off"),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE", "p2p_off"),
        ("unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5", "debug_info"),
        ("my GPUs hang in the first all_reduce", "p2p_off"),
    ],
)  # fmt: skip
def test_a_pasted_error_text_finds_its_entry(text: str, best: str) -> None:
    assert matches(text, ENTRIES)[0].name == best


@given(st.text())
def test_any_text_can_be_explained(text: str) -> None:
    assert all(match.texts for match in matches(text, ENTRIES))


def test_a_healthy_log_finds_nothing() -> None:
    log = (
        "NCCL INFO Bootstrap : Using eth0:10.1.1.1<0>\nNCCL INFO NET/IB : Using [0]mlx5_0:1/IB\nNCCL INFO Init COMPLETE"
    )
    assert matches(log, ENTRIES) == []


def test_the_table_and_its_json_have_all_entries_the_users_too(launch: Launch, tmp_path: Path) -> None:
    own(tmp_path, "mine", "symptom: it is Monday\nenv: {NCCL_DEBUG: WARN}\nmatch: [monday]")
    done = launch("nccl", "list", "--config-dir", str(tmp_path))
    assert done.returncode == 0
    for text in ("NAME", "SYMPTOM", "COST", "p2p_off", "NCCL_P2P_DISABLE=1", "mine", "it is Monday"):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 160
    listed = json.loads(launch("nccl", "list", "--json").stdout)
    assert set(listed) == set(OURS.names()) and listed["p2p_off"]["env"] == {"NCCL_P2P_DISABLE": "1"}
    explained = launch("nccl", "explain", "an error on MONDAY", "--config-dir", str(tmp_path))
    assert "'nccl=[+mine]'" in explained.stdout


def test_explain_reads_standard_input_and_is_honest_when_it_knows_nothing(launch: Launch) -> None:
    command = launcher_command("nccl", "explain", "-")
    text = "NCCL WARN Bootstrap : no socket\n interface found"
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0 and "cluster.network_interface=" in done.stdout
    nothing = launch("nccl", "explain", "the coffee is cold")
    assert nothing.returncode == 0 and "no entry of the catalogue fits" in nothing.stdout
    empty = launch("nccl", "explain", " ")
    assert empty.returncode == 2 and len(empty.stderr.splitlines()) == 1
