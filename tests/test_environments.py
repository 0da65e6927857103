"""Environments in every way of running many at once. Torch is imported where it is used: collecting needs none."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch, only_run, result_of

pytestmark = pytest.mark.train


def task(env: str, vectorization: str = "auto", **arguments: Any) -> dict[str, Any]:
    return {"env": env, "vectorization": vectorization, "env_args": arguments, "reward_scale": 1.0}


def make(*arguments: Any, num_envs: int = 4, seed: int = 3, **options: Any) -> Any:
    import torch

    from launcher.train.environments import Environments

    return Environments(task(*arguments, **options), num_envs, seed, torch.device("cpu"))


def steps(environments: Any, seed: int = 0) -> Iterator[Any]:
    """Endless steps with random actions, the same for the same seed."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    while True:
        yield environments.step(torch.randn(environments.num_envs, environments.num_actions, generator=generator))


WAYS = [("CartPole-v1", "auto"), ("CartPole-v1", "sync"), ("CartPole-v1", "async"), ("Pendulum-v1", "sync")]


@pytest.mark.parametrize(("env", "way"), [*WAYS, ("HalfCheetah-v4", "envpool"), ("Hopper-v5", "sync")])
def test_an_episode_ends_and_the_next_begins_within_one_step(env: str, way: str) -> None:
    import torch

    if way == "envpool":
        pytest.importorskip("envpool")
    if env.startswith("Hopper"):
        pytest.importorskip("mujoco")
    environments, step = make(env, way), None
    for number, step in enumerate(itertools.islice(steps(environments), 1001)):
        same = (step.reached == step.observations).all(dim=1)
        assert torch.equal(same, ~step.dones), f"step {number}"
        assert not (step.time_outs & ~step.dones).any()
        if step.dones.any():
            break
    assert step is not None and step.dones.any()
    assert environments.episodes.length_mean is not None


@pytest.mark.parametrize(("env", "way"), WAYS)
def test_the_same_seed_gives_the_same_world_and_another_one_another(env: str, way: str) -> None:
    import torch

    first, again, other = make(env, way), make(env, way), make(env, way, seed=4)
    assert not torch.equal(first.observations, other.observations)
    for one, two in itertools.islice(zip(steps(first), steps(again)), 250):
        assert torch.equal(one.observations, two.observations)


@pytest.mark.parametrize(("env", "way"), [("CartPole-v1", "auto"), ("CartPole-v1", "sync"), ("Pendulum-v1", "sync"),
                                          ("Hopper-v5", "sync"), ("HalfCheetah-v5", "sync")])  # fmt: skip
def test_environments_go_on_exactly_where_others_stood(env: str, way: str) -> None:
    import torch

    if env[0] == "H":
        pytest.importorskip("mujoco")
    one, two = make(env, way), make(env, way, seed=99)
    list(itertools.islice(steps(one), 70))
    two.set_state(one.get_state())
    assert torch.equal(one.observations, two.observations)
    for mine, theirs in itertools.islice(zip(steps(one, 5), steps(two, 5)), 250):
        assert torch.equal(mine.observations, theirs.observations)
        assert torch.equal(mine.rewards, theirs.rewards)


@pytest.mark.parametrize(
    ("way", "num_envs", "said"),
    [("auto", 7, "of 4 environments a rank, and here are 7"), ("sync", 4, "step in another way (CartPoles, not Sync")],
)
def test_environments_that_do_not_fit_a_checkpoint_begin_new_episodes(
    way: str, num_envs: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make("CartPole-v1", way, num_envs=num_envs)
    before = other.observations.clone()
    other.set_state(make("CartPole-v1", "auto").get_state())
    assert said in capsys.readouterr().out
    assert bool((other.observations == before).all()) and next(steps(other)) is not None


def test_native_cartpole_ends_episodes_as_the_plain_one_does() -> None:
    native, plain = make("CartPole-v1", "auto", num_envs=64), make("CartPole-v1", "sync", num_envs=64)
    for environments in (native, plain):
        list(itertools.islice(steps(environments), 300))
    assert native.episodes.length_mean == pytest.approx(plain.episodes.length_mean, rel=0.25)
    assert native.episodes.return_mean == native.episodes.length_mean  # one point a step, the first and last included


MINE = """\
import gymnasium
from gymnasium.vector import AutoresetMode


def make(num_envs, seed, device, mode="SameStep"):
    print("made", num_envs, seed, device)
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync",
                              vector_kwargs={"autoreset_mode": AutoresetMode(mode)})
"""


def test_an_environment_of_the_users_own(launch: Launch, workdir: Path) -> None:
    (workdir / "my_envs.py").write_text(MINE)
    done = launch("task.env='my_envs:make'", "max_iterations=2", "num_envs=8", "seed=7")
    assert done.returncode == 0, done.stderr
    assert "made 8 7 cpu" in (only_run(workdir) / "attempts/000/rank-0.log").read_text()


def test_an_environment_that_restarts_with_the_next_step_is_refused(launch: Launch, workdir: Path) -> None:
    (workdir / "my_envs.py").write_text(MINE)
    assert launch("task.env='my_envs:make'", "task.env_args.mode=NextStep", "max_iterations=2").returncode == 1
    assert "SAME_STEP" in result_of(only_run(workdir))["message"]
