"""The plan: pure, JSON both ways, every value with its origin."""

import functools
import json
import subprocess
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.plan.build import Here, build
from launcher.plan.command import torchrun_command
from launcher.plan.plan import Plan

HERE = Here("the-run", Path("/runs"), Path("/work dir"), "/venv/bin/python")


@functools.cache  # a plan cannot be changed; these are composed for many tests
def plan_of(*overrides: str) -> Plan:
    return anew(*overrides)


def anew(*overrides: str) -> Plan:
    return build(compose(overrides).config, HERE)


def test_a_plan_reads_back_as_it_was_written() -> None:
    plan = plan_of("cluster=a100x2", "cluster.env.X='a,b é'", "nccl=[p2p_off]", "cluster.setup=[echo 1]")
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_of_another_version_is_refused() -> None:
    data = json.loads(plan_of().to_json())
    with pytest.raises(ValueError, match="version 99"):
        Plan.from_json(json.dumps({**data, "version": 99}))


def test_the_same_configuration_gives_the_same_plan() -> None:
    assert anew("cluster=a100x2") == anew("cluster=a100x2")


def test_one_rank_per_gpu_each_with_its_share_of_the_node() -> None:
    resources = plan_of("cluster=a100x8", "cluster.nodes=4").resources
    assert (resources.world_size, resources.cpus_per_node, resources.memory_mb_per_node) == (32, 128, 8 * 120 * 1024)


def test_the_profile_becomes_directives_and_nothing_is_said_that_was_not_asked_for() -> None:
    directives = plan_of("cluster=a100x2", "cluster.nodes=2").directives
    assert directives == {
        "job-name": "cartpole-rsl_rl", "nodes": 2, "ntasks-per-node": 1, "cpus-per-task": 16, "mem": "120G",
        "time": "04:00:00", "signal": "USR2@120", "requeue": True, "open-mode": "append", "gpus-per-node": "a100:2",
    }  # fmt: skip


def test_a_site_can_add_drop_and_rename_directives() -> None:
    directives = plan_of(
        "cluster=a100x2", "cluster.gpu_request=gres", "cluster.skip_directives=[mem,requeue]",
        "cluster.extra_directives.comment=hi", "cluster.extra_directives.exclusive=true", "cluster.partition=gpu",
        "cluster.extra_directives.overcommit=false",
    ).directives  # fmt: skip
    assert directives["gres"] == "gpu:a100:2"
    assert (directives["comment"], directives["exclusive"], directives["partition"]) == ("hi", True, "gpu")
    assert not {"mem", "requeue", "gpus-per-node", "overcommit", "account"} & directives.keys()


def test_a_directive_that_would_not_be_written_cannot_be_dropped() -> None:
    with pytest.raises(UserError, match="'gpus_per_node' would be written; did you mean gpus-per-node"):
        plan_of("cluster=a100x2", "cluster.skip_directives=[gpus_per_node]")
    assert "mem" not in plan_of("cluster=a100x2", "cluster.skip_directives=[mem,gres]").directives


def test_slices_of_gpus_are_asked_for_by_their_type() -> None:
    assert plan_of("cluster=mig").directives["gpus-per-node"] == "1g.10gb:1"


def test_the_interpreter_is_that_of_the_environment_unless_it_is_named(tmp_path: Path) -> None:
    assert plan_of("cluster=a100x2", "cluster.venv='my env'").python == "/work dir/my env/bin/python"
    assert plan_of("cluster=a100x2", "cluster.conda=rl").python == "python"  # found by the PATH of the node
    assert plan_of("cluster=a100x2", "cluster.conda=rl", "cluster.python=/py").python == "/py"


def test_a_conda_environment_is_activated_in_the_batch_script_or_the_job_ends(tmp_path: Path) -> None:
    conda = tmp_path / "conda"
    hook = 'conda() { [ "$2" != nix ] && ENV="$*"; }'
    conda.write_text(f"#!/bin/sh\n[ \"$*\" = 'shell.posix hook' ] && echo '{hook}'\n")
    conda.chmod(0o755)

    def activated(name: str) -> str:
        lines = "\n".join([*plan_of("cluster=a100x2", f"cluster.conda='{name}'").setup, 'echo "$ENV"'])
        bash = ["bash", "-c", lines]
        return subprocess.run(bash, env={"CONDA_EXE": str(conda)}, capture_output=True, text=True, check=False).stdout

    assert activated("my $rl") == "activate my $rl\n"
    assert activated("nix") == ""


def test_a_module_that_cannot_be_loaded_ends_the_job_and_its_name_is_one_word() -> None:
    def loaded(name: str) -> str:
        function = 'module() { [ "$2" != nix ] && ENV="$*"; }'
        lines = "\n".join(
            [function, *plan_of("cluster=a100x2", f"cluster.modules=['{name}', cuda]").setup, 'echo "$ENV"']
        )
        return subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=False).stdout

    assert loaded("gcc; $HOME") == "load gcc; $HOME cuda\n"
    assert loaded("nix") == ""


def test_the_warning_never_comes_before_half_of_a_short_time_limit() -> None:
    assert plan_of("cluster=a100x2", "cluster.time=1").directives["signal"] == "USR2@30"


def test_later_layers_win_and_each_value_tells_its_origin() -> None:
    plan = plan_of("nccl=[p2p_off]", "cluster.env.NCCL_P2P_DISABLE='0'", "cluster.network_interface=eth0")
    assert [s.origin for s in plan.environment if s.name == "NCCL_P2P_DISABLE"] == ["nccl p2p_off", "cluster local"]
    values = plan.values()
    assert values["NCCL_P2P_DISABLE"] == "0"
    assert (values["NCCL_SOCKET_IFNAME"], values["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")


def test_nothing_of_nccl_is_set_that_was_not_asked_for() -> None:
    assert not [name for name in plan_of("cluster=a100x8").values() if name.startswith(("NCCL", "GLOO", "TORCH"))]


def test_a_script_is_run_by_python_with_its_arguments_as_words(tmp_path: Path) -> None:
    plan = plan_of(
        "task=script", "library=torchrun", "task.path=my train.py", "task.args=[--lr, 1e-3, 'a b', true, null]"
    )
    assert plan.entry == ("/venv/bin/python", "-u", "/work dir/my train.py", "--lr", "0.001", "a b", "true", "null")
    assert plan_of("task=script", "library=torchrun", "task.path=/x/run.sh").entry == ("/x/run.sh",)
    module = plan_of("task=script", "library=torchrun", "task.module=pkg.train", "cluster.python=/py")
    assert module.entry == ("/py", "-u", "-m", "pkg.train")


def test_max_iterations_and_num_envs_come_from_the_task_unless_they_are_given() -> None:
    assert (plan_of().training["max_iterations"], plan_of().training["num_envs"]) == (300, 64)
    assert plan_of("max_iterations=7", "num_envs=8").training["max_iterations"] == 7


def test_torchrun_is_told_its_place_statically() -> None:
    command = torchrun_command(plan_of("cluster=a100x2", "cluster.nodes=3"), 2, "node2", 12345, "/logs")
    assert {"--nnodes=3", "--nproc-per-node=2", "--node-rank=2", "--master-addr=node2", "--master-port=12345"} <= set(
        command
    )
