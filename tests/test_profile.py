"""Profiles: what Slurm says of a site, and the file that is written from it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.profile import choose, profile_of
from launcher.config.compose import compose
from launcher.config.schema import Cluster, GpuRequest
from launcher.config.validate import validate
from launcher.errors import SchedulerError, UserError
from launcher.slurm.inventory import Gpus, parse_config, parse_gres, parse_nodes, parse_partitions
from tests.conftest import Launch

PARTITIONS = """\
PartitionName=cpu Default=YES MaxTime=UNLIMITED Nodes=c[1-9] OverSubscribe=NO State=UP JobDefaults=(null) TRES=cpu=1,mem=2G
PartitionName=gpu Default=NO MaxTime=2-00:00:00 Nodes=g[1-3] OverSubscribe=EXCLUSIVE State=UP
PartitionName=mig Default=NO MaxTime=00:30:00 Nodes=m1 OverSubscribe=NO State=UP
PartitionName=old Default=NO MaxTime=UNLIMITED Nodes=o1 OverSubscribe=NO State=DOWN
"""  # noqa: E501
NODES = """\
NodeName=c1 Arch=x86_64 CPUEfctv=62 CPUTot=64 Gres=(null) OS=Linux 6.1 #1 SMP @0 RealMemory=257000 MemSpecLimit=1000 State=IDLE Partitions=cpu CfgTRES=cpu=64
NodeName=g1 CPUTot=128 Gres=gpu:a100:8(S:0-1),shard:8 RealMemory=2064000 Partitions=gpu,old
NodeName=g2 CPUTot=128 Gres=gpu:a100:8(S:0,1) RealMemory=2064000 Partitions=gpu Reason=Not responding [root@x]
NodeName=g3 CPUTot=96 Gres=gpu:4 RealMemory=1032000 Partitions=gpu
NodeName=m1 CPUTot=32 Gres=gpu:1g.10gb:7(S:0) RealMemory=256000 Partitions=mig
NodeName=o1 CPUTot=32 Gres=gpu:k80:16 RealMemory=256000 Partitions=old
"""  # noqa: E501
CONFIG = (
    "ClusterName             = the lab\nMaxArraySize            = 1001\nSelectType              = select/cons_tres\n"
)


def profile_for(wish: str | None, tmp_path: Path, config: str = CONFIG) -> tuple[Cluster, str]:
    """The profile of a partition, used: the cluster that it composes to, and its text."""
    partitions, nodes = parse_partitions(PARTITIONS), parse_nodes(NODES)
    text = profile_of(choose(partitions, nodes, wish), partitions, nodes, parse_config(config), None)
    (tmp_path / "cluster").mkdir(exist_ok=True)
    (tmp_path / "cluster" / "mine.yaml").write_text(text)
    composed = compose(["cluster=mine"], [str(tmp_path)]).config
    validate(composed)
    return composed.cluster, text


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:2(S:0-1)", [("a100", 2)]),
        ("gpu:a100:2,gpu:1g.10gb:7(S:0,1),shard:8", [("a100", 2), ("1g.10gb", 7)]),
        ("gpu:4", [("", 4)]),
        ("gpu", [("", 1)]),
        ("(null)", []),
        ("", []),
        ("lustre:5,gpumem:80G", []),
    ],
)
def test_generic_resources_are_read(text: str, gpus: list[tuple[str, int]]) -> None:
    assert parse_gres(text) == tuple(Gpus(kind, count) for kind, count in gpus)


@given(st.text())
def test_any_text_of_a_controller_is_read_without_a_crash(text: str) -> None:
    assert all(node.cpus for node in parse_nodes(f"NodeName=n CPUTot=4 RealMemory=5 Comment={text!r}"))
    for parse in (parse_partitions, parse_config, parse_gres):
        parse(text)


def test_the_partition_with_gpus_is_taken_and_each_rank_gets_its_share_of_the_most_common_node(tmp_path: Path) -> None:
    cluster, text = profile_for(None, tmp_path)
    assert (cluster.name, cluster.partition, cluster.time) == ("the-lab-gpu", "gpu", "1-00:00:00")
    assert (cluster.gpus_per_node, cluster.gpu_type, cluster.cpus_per_gpu) == (8, "a100", 16)
    assert cluster.mem_per_gpu == "251G"  # 2064000 MiB / 8, whole gibibytes
    assert cluster.gpu_request is GpuRequest.gpus_per_node
    for said in ("whole nodes", "2-00:00:00", "1000 (MaxArraySize)", "1 × (4 GPUs, 96 CPUs", "Another partition: mig"):
        assert said in text


def test_slices_nodes_without_gpus_and_other_selections_are_described_as_they_are(tmp_path: Path) -> None:
    mig, _ = profile_for("mig", tmp_path)
    assert (mig.gpus_per_node, mig.gpu_type, mig.time) == (7, "1g.10gb", "00:30:00")
    cpu, _ = profile_for("cpu", tmp_path)
    assert (cpu.gpus_per_node, cpu.device.value, cpu.cpus_per_gpu, cpu.mem_per_gpu) == (0, "cpu", 62, "250G")
    linear, _ = profile_for("gpu", tmp_path, CONFIG.replace("cons_tres", "linear"))
    assert linear.gpu_request is GpuRequest.gres


def test_an_unknown_partition_is_named_with_the_nearest_and_none_at_all_is_said() -> None:
    with pytest.raises(UserError, match=r"did you mean gpu\?"):
        choose(parse_partitions(PARTITIONS), parse_nodes(NODES), "gpus")
    with pytest.raises(SchedulerError, match="no partition"):
        choose([], [], None)


def test_without_slurm_one_line_says_so(launch: Launch) -> None:
    done = launch("profile", PATH="/nowhere")
    assert done.returncode == 3
    assert done.stderr == "launcher: there is no scontrol on this machine\n"
