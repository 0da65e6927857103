"""What the tests share: a working directory with a nasty name, the command line, a private Slurm cluster."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.fake_nvml import FakeDriver, NoCompiler
from tests.fake_nvml import build as build_fake_nvml
from tests.sandbox import Sandbox, SandboxUnavailable
from tests.warm import Warm, suits

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("here", deadline=None, max_examples=50)  # a busy machine is no fault
settings.load_profile("here")

PATIENCE = 3
"""How much longer than on a quiet machine a test waits before it calls something lost: waiting costs only failures."""

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the test, with a name that breaks whatever is not quoted."""
    path = tmp_path / 'it\'s a $HOME; "dir" é'
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def environment(**extra: str) -> dict[str, str]:
    """The environment of a command under test: this clone's package, and nothing that a job left behind."""
    foreign = ("SLURM_", "LAUNCHER_", "PYTHONDONTWRITEBYTECODE")  # without bytecode each start of Python takes longer
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


def launcher_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "launcher", *arguments]


@pytest.fixture(scope="session")
def warm() -> Generator[Warm]:
    """What the commands of a session are forked from."""
    process = Warm(functools.partial(subprocess.Popen, env=environment(), text=True))
    yield process
    process.stop()


@pytest.fixture
def launch(workdir: Path, warm: Warm) -> Launch:
    """Run the command line on this machine, in the current directory: at first the nasty one."""

    def run(*arguments: str, timeout: float = 120, **extra: str) -> subprocess.CompletedProcess[str]:
        if suits(extra):
            return warm.run(arguments, Path.cwd(), environment(**extra), PATIENCE * timeout)
        return subprocess.run(
            launcher_command(*arguments), env=environment(**extra), timeout=PATIENCE * timeout,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    return run


def runs_in(place: Path) -> list[Path]:
    """The directories of runs, and of sweeps, by name; what is the launcher's own is hidden beside them."""
    return sorted(path for path in place.iterdir() if not path.name.startswith("."))


def only_run(directory: Path) -> Path:
    """The directory of the one run in ``runs/``."""
    (run,) = runs_in(directory / "runs")
    return run


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def script(directory: Path, text: str, name: str = "train it.py") -> Path:
    """A user's training script, with a blank in its name."""
    path = directory / name
    path.write_text(text)
    return path


def started(**options: Any) -> Iterator[Sandbox]:
    """A real Slurm cluster with these options, until the fixture's end; the test is skipped where there can be none."""
    try:
        cluster = Sandbox.start(**options)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


LONGEST = (
    "rl_libraries", "survival", "trl", "local", "random_interruptions", "overlapping_accidents", "slurm", "sweeps",
    "diagnose_run", "hang_runs", "accelerate", "containers", "three_ways", "failures", "tracking", "record", "docs",
    "bench", "fidelity", "requeued_array",
)  # fmt: skip
"""Files of tests, the longest first: workers that take whole files, as in `make test`, then end at about one time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails on a cluster says what Slurm was doing: whether a job waited, and what for."""
    report = yield
    clusters = [one for one in getattr(item, "funcargs", {}).values() if isinstance(one, Sandbox)]
    if report.failed and report.when == "call":
        for cluster in clusters:
            report.sections += [(" ".join(words), answer_of(cluster, words)) for words in LOOKS]
    return report


LOOKS = (["squeue", "--all", "--long"], ["sinfo", "--Node", "--long"], ["scontrol", "show", "step"])


def answer_of(cluster: Sandbox, words: Sequence[str]) -> str:
    try:
        return cluster.run(words, timeout=20).stdout
    except Exception as error:  # what the test says matters more
        return str(error)


@pytest.fixture(scope="session")
def shared_cluster() -> Generator[Sandbox]:
    """The one behind `sandbox`.

    What is cancelled has time to save on a busy machine, too; Slurm's own default is twice as much.
    """
    yield from started(extra_conf="KillWait=15")


@pytest.fixture
def sandbox(shared_cluster: Sandbox) -> Generator[Sandbox]:
    """A real Slurm cluster: four nodes, two fake A100 each, with accounting. Shared by all tests, and idle at first.

    A run may have its verdict while its job still ends: the next job would get other nodes than it counts on.
    """
    while shared_cluster.run(["squeue", "-h"], check=True).stdout:
        time.sleep(0.1)
    yield shared_cluster
    shared_cluster.run(["scancel", "--user=root"], check=True)


@pytest.fixture(scope="module")
def oddly_named() -> Generator[Sandbox]:
    """A cluster whose host names sort differently as text and as numbers; without accounting."""
    yield from started(nodes=["node2", "node9", "node10"], accounting=False)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What JAX has compiled, for all ranks of all tests."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def compiled_quickly(monkeypatch: pytest.MonkeyPatch, compiled: Path) -> None:
    """JAX compiles for longer than short trainings run: what makes their code fast is not worth its while, and once is
    enough."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(compiled))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    """The fake of the NVIDIA driver's library, built; nobody has been told of it."""
    try:
        return build_fake_nvml(tmp_path_factory.mktemp("driver"))
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture
def driver(library: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Whatever asks NVML from here on meets the fake, with four healthy GPUs; also on a machine with real ones."""
    library.says({"gpus": 4})
    for name, value in library.environment.items():
        monkeypatch.setenv(name, value)
    return library
