"""A video of the trained policy, by every library."""

from pathlib import Path

import pytest

from tests.conftest import Launch, only_run, result_of

pytestmark = [pytest.mark.train, pytest.mark.usefixtures("compiled_quickly")]


@pytest.mark.parametrize("library", ["rsl_rl", "rl_games", "skrl", "skrl_jax"])
def test_a_short_video_is_recorded_without_a_screen(launch: Launch, workdir: Path, library: str) -> None:
    imageio = pytest.importorskip("imageio.v3")
    pytest.importorskip("pygame")
    pytest.importorskip({"skrl_jax": "jax"}.get(library, library))
    done = launch(f"library={library}", "task.record=true", "max_iterations=1", "num_envs=4", timeout=240)
    assert done.returncode == 0, done.stderr
    frames = imageio.imread(only_run(workdir) / "policy.mp4")
    assert frames.shape[0] > 5
    assert frames.shape[1:] == (400, 600, 3)
    assert frames.std() > 1  # something is to be seen


def test_a_video_that_cannot_be_made_harms_nothing(launch: Launch, workdir: Path) -> None:
    (workdir / "imageio.py").write_text("raise ImportError('none here')")
    arguments = ("task.record=true", "max_iterations=1", "num_envs=4", "cluster.env.PYTHONPATH=.")
    assert launch(*arguments).returncode == 0
    assert result_of(only_run(workdir))["cause"] == "max_iterations"
    assert "no video: ImportError: none here" in (only_run(workdir) / "attempts/000/rank-0.log").read_text()
