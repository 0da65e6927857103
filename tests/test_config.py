"""Composition and validation: what may be asked for, and what a mistake gets for an answer."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.compose import compose
from launcher.config.directories import builtin_config_dir, group_options
from launcher.config.hosts import expand_hosts
from launcher.config.literals import quote
from launcher.config.schema import Scheduler
from launcher.config.validate import validate
from launcher.errors import UserError


def test_nothing_said_is_cartpole_under_rsl_rl_on_this_machine() -> None:
    config = compose([]).config
    validate(config)
    assert (config.task.name, config.library.name, config.cluster.scheduler) == ("cartpole", "rsl_rl", Scheduler.local)
    assert config.agent["algorithm"]["class_name"] == "PPO"


def test_hyperparameters_are_those_of_the_task_under_the_library() -> None:
    assert compose(["task=pendulum"]).config.agent["num_steps_per_env"] == 64
    assert compose(["task=script", "library=torchrun"]).config.agent == {}


@pytest.mark.parametrize("library", ["rsl_rl", "rl_games", "skrl", "skrl_jax"])
@pytest.mark.parametrize("task", ["cartpole", "pendulum", "halfcheetah", "hopper", "walker2d", "ant", "humanoid"])
def test_every_task_has_hyperparameters_under_every_rl_library(task: str, library: str) -> None:
    config = compose([f"task={task}", f"library={library}"]).config
    validate(config)
    assert config.agent and task not in config.agent and library not in config.agent  # none landed one level too deep


@pytest.mark.parametrize("cluster", group_options()["cluster"])
def test_every_profile_of_the_gallery_composes_is_valid_and_says_for_whom_it_is(cluster: str) -> None:
    config = compose([f"cluster={cluster}"]).config
    validate(config)
    assert config.cluster.name == cluster
    assert (builtin_config_dir() / "cluster" / f"{cluster}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("taks=pendulum", "did you mean task?"),
        ("cluster=a100x3", "did you mean a100x"),
        ("cluster.node=2", "did you mean cluster.nodes"),
        ("nodes=2", "did you mean cluster.nodes?"),
        ("agent.algorithm.learnin_rate=1", "did you mean agent.algorithm.learning_rate?"),
        ("nccl=[p2p_of]", "did you mean p2p_off?"),
        ("cluster.nccl=[nix]", "there are: algo_ring, cumem_host_off"),
        ("cluster.venv=.venv", "without Slurm activate yours first"),
        ("cluster.scratch=tmp", "absolute path"),
        ("cluster.extra_directives.gpu_bind=none", "no option of sbatch"),
        ("cluster.network_interface='=eth0'", "cluster.env"),
        ("++cluster.bla=3", "no key 'cluster.bla'"),
        ("+bla=3", "no key 'bla'"),
        ("cluster.nodes=two", "cluster.nodes"),
        ("cluster.nodes=0", "at least 1"),
        ("seed=1.5", "seed"),
        ("checkpoint.every=0", "at least 1"),
        ("checkpoint.minutes=0", "more than 0, or null"),
        ("checkpoint.best=-", "names no metric"),
        ("cluster.device=gpu", "auto, cpu, cuda"),
        ("cluster.time=1h", "1:30:00"),
        ("cluster.mem_per_gpu=0.5G", "16G"),
        ("cluster.nodes", "KEY=VALUE"),
        ("cluster.nodes=[", "KEY=VALUE"),
        ("seed=${nix}", "nix"),
        ("cluster.nodes=${nix}", "cluster.nodes: Interpolation key 'nix'"),
        ("cluster=nix", "DIR/cluster/nix.yaml, with --config-dir DIR"),
        ("task=script", "library=torchrun"),
        ("library=skrl_warp", "did you mean skrl"),
        ("library=torchrun", "task.path"),
        ("cluster.nodes=2", "needs a Slurm cluster"),
        ("cluster.hosts=[a,b]", "launcher commands"),
        ("cluster.scheduler=none", "cluster.hosts is missing"),
        ("cluster.hosts=gpu[2-1]", "the range '2-1' falls"),
        ("cluster.hosts=a,b,a", "names a twice"),
        ("cluster.hosts=['a b']", "is not a host"),
        ('cluster.partition="a\nb"', "control character"),
        ("notify.webhok=A", "did you mean notify.webhook?"),
        ("notify.when=never", "end, failure"),
        ("notify.webhook='https://hooks/x'", "notify.webhook=MY_WEBHOOK"),
        ("notify.mail=me@lab", "use notify.webhook or notify.command"),
    ],
)
def test_a_mistake_is_named_with_what_was_meant(override: str, answer: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(compose([override]).config)
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_that_contradict_each_other_are_a_one_line_error() -> None:
    with pytest.raises(UserError, match="do not fit together"):
        compose(["task.args=[a]", "task.args.x=1"])


def test_a_script_that_does_not_exist_is_named(tmp_path: Path) -> None:
    overrides = ["task=script", "library=torchrun", f"task.path={tmp_path}/nix.py"]
    with pytest.raises(UserError, match=r"no file .*nix\.py"):
        validate(compose(overrides).config)


def _user_files(directory: Path, name: str, text: str) -> str:
    path = directory / "my conf's" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.parent.joinpath(name).parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(directory / "my conf's")


def test_a_users_own_directory_adds_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = _user_files(tmp_path, "cluster/mine", "name: mine\nscheduler: slurm\nnodes: 3\n")
    assert compose(["cluster=mine"], [directory]).config.cluster.nodes == 3
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", directory)
    assert compose(["cluster=mine"]).config.cluster.name == "mine"


def test_an_unquoted_clock_time_in_a_file_is_not_taken_for_a_number(tmp_path: Path) -> None:
    directory = _user_files(tmp_path, "cluster/mine", "name: mine\nscheduler: slurm\ntime: 1:30:00\n")
    assert compose(["cluster=mine"], [directory]).config.cluster.time == "1:30:00"


@pytest.mark.parametrize("text", ["nodes: [", "node: 3", "nodes: two", "time: 1h"])
def test_a_mistake_in_a_users_file_is_a_one_line_error(tmp_path: Path, text: str) -> None:
    directory = _user_files(tmp_path, "cluster/mine", f"name: mine\nscheduler: slurm\n{text}\n")
    with pytest.raises(UserError) as caught:
        validate(compose(["cluster=mine"], [directory]).config)
    assert "\n" not in str(caught.value)


def test_a_directory_of_configurations_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match="nowhere"):
        compose([], ["/nowhere"])


def test_the_written_configuration_composes_to_the_same_again(tmp_path: Path) -> None:
    first = compose(["task=pendulum", "cluster=a100x2", "cluster.env.X='a,b'", "nccl=[p2p_off]"])
    directory = _user_files(tmp_path, "task/again", "name: again\n")
    (Path(directory) / "again.yaml").write_text(first.yaml)
    from omegaconf import OmegaConf

    from launcher.config.schema import Config

    assert OmegaConf.to_object(OmegaConf.merge(Config, OmegaConf.load(f"{directory}/again.yaml"))) == first.config


@given(
    st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r\0")), min_size=1, max_size=8)
)
@settings(max_examples=8)  # each composes
def test_any_value_survives_the_command_line(values: list[str]) -> None:
    config = compose([f"cluster.env.X{number}={quote(value)}" for number, value in enumerate(values)]).config
    assert config.cluster.env == {f"X{number}": value for number, value in enumerate(values)}


def test_a_task_without_hyperparameters_for_the_library_is_refused_with_what_to_do(tmp_path: Path) -> None:
    directory = _user_files(tmp_path, "task/acrobot", "env: Acrobot-v1\nname: acrobot\n")
    with pytest.raises(UserError, match=r"write agent/skrl/acrobot\.yaml"):
        validate(compose(["task=acrobot", "library=skrl"], [directory]).config)


def test_two_ranks_on_one_gpu_are_refused() -> None:
    overrides = ["library=skrl_jax", "cluster=a100x2", "cluster.nproc_per_node=4"]
    validate(compose(overrides).config)
    with pytest.raises(UserError, match=r"cluster.nproc_per_node=4 and cluster.gpus_per_node=2"):
        validate(compose([*overrides, "cluster.device=cuda"]).config)


@pytest.mark.parametrize("hosts", ["[gpu1,gpu2,login]", "gpu[1-2],login", "gpu1,gpu2,login", "['gpu[1-2]',login]"])
def test_hosts_are_a_list_or_slurms_short_form_and_say_how_many_nodes_there_are(hosts: str) -> None:
    config = compose([f"cluster.hosts={hosts}", "cluster.scheduler=none"]).config
    validate(config)
    assert expand_hosts(config.cluster.hosts) == ["gpu1", "gpu2", "login"]
    assert config.cluster.nodes == 3


def test_hosts_and_another_number_of_nodes_contradict_each_other() -> None:
    with pytest.raises(UserError, match=r"cluster.nodes=2, but cluster.hosts names 3"):
        compose(["cluster.hosts=a,b,c", "cluster.nodes=2"])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("partitoin: gpu", "there is no key 'cluster.partitoin'; did you mean cluster.partition?"),
        (
            "scheduler: slrm",
            "bad value for cluster.scheduler: Invalid value 'slrm', expected one of [local, slurm, none]",
        ),
        ("gpus_per_node: two", "bad value for cluster.gpus_per_node: Value 'two'"),
        ("retry: {crash: 1}", "there is no key 'cluster.retry'; did you mean retry?"),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_is_named_with_the_file(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "lab.yaml").write_text(f"name: lab\n{line}\n")
    with pytest.raises(UserError) as raised:
        compose(["cluster=lab"], [str(tmp_path)])
    assert str(raised.value).startswith(f"cluster/lab.yaml: {told}")
    assert "\n" not in str(raised.value)


def test_hydras_own_settings_may_still_be_named() -> None:
    overrides = ["hydra.job.name=x", "hydra/job_logging=disabled", "hydra.sweeper.max_batch_size=3"]
    assert compose(["seed=3", *overrides]).config == compose(["seed=3"]).config
