"""A forked rank is to a script what a process of its own would be; and what is forked, and what is not."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.plan.plan import Start
from launcher.plan.start import choose
from launcher.train import forked
from tests.conftest import PATIENCE, Launch, environment, launcher_command, only_run, result_of, script
from tests.test_local import processes_of, wait_until

DRIVER = """\
import json, os, sys
from launcher.train import forked
for number in forked.HANDLED:
    forked.signal.signal(number, lambda *_: None)
waiting = forked.fork(1)
if isinstance(waiting, forked.Order):
    waiting.run()
else:
    command, log = json.loads(sys.argv[1])
    waiting[0].send(forked.Order(command, {**os.environ, "RANK": "0"}, log, os.getpid()))
    print(waiting[0].wait())
"""


def forked_run(*command: str) -> tuple[int, str]:
    """The exit code of a forked rank, and what it wrote."""
    log = Path("rank-0.log").absolute()
    words = [sys.executable, "-c", DRIVER, json.dumps([[sys.executable, "-u", *command], str(log)])]
    done = subprocess.run(
        words, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True
    )
    assert done.stderr == ""
    text = log.read_text()
    log.unlink()
    return int(done.stdout), text


def own_run(*command: str) -> tuple[int, str]:
    """The same of a process of its own."""
    words = [sys.executable, "-u", *command]
    done = subprocess.run(
        words, env=environment(RANK="0"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    return done.returncode, done.stdout


WHO = """\
import argparse, faulthandler, os, signal, sys, threading
print(__name__, __file__, __spec__, __package__, __doc__, __builtins__, sorted(globals()))
print(sys.argv, sys.orig_argv, sys.path, sys.flags, argparse.ArgumentParser().prog, sys.modules["__main__"].__file__)
print([signal.getsignal(number) for number in range(1, 32)], signal.pthread_sigmask(0, []))
print(os.getpid() == os.getsid(0) == os.getpgid(0), os.getcwd(), sorted(os.listdir("/proc/self/fd"))[:3])
print(sys.stdout.encoding, sys.stdout.write_through, sys.stderr.errors, faulthandler.is_enabled())
print(threading.active_count(), threading.current_thread().name, len(os.environ) == len(os.environb))
print(open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"))
shown = dict(one.split("=", 1) for one in open("/proc/self/environ").read().split("\\0") if one)
print(shown["RANK"], shown.items() <= os.environ.items())
"""
MODULE = """\
import multiprocessing, sys
from .part import value
class Mine:
    pass
def f(x):
    return x, type(x).__name__, __name__
if __name__ == "__main__":
    print(__spec__.name, __package__, __file__, sys.argv, sys.path[0], value)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print([name for _, *name in pool.map(f, [1, Mine()])])
    raise ValueError("of a module")
"""
POOLS = """\
import multiprocessing, pickle, sys
class Mine:
    def __init__(self, value):
        self.value = value
def f(x):
    return x.value, __name__
if __name__ == "__main__":
    print(type(pickle.loads(pickle.dumps(Mine(1)))) is Mine)
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(f, [Mine(1), Mine(2)]))
"""
ENDS = {
    "a number": "import sys\nsys.exit(7)\n",
    "a text": "import sys\nsys.exit('no such file')\n",
    "an exception": "def f():\n    1 / 0\ntry:\n    f()\nexcept ArithmeticError as e:\n    raise KeyError from e\n",
    "a syntax error": "def f(:\n",
    "no such module": "import nothing_of_the_kind\n",
    "a hook": "import sys\nsys.excepthook = lambda *what: print('hook', what[0], what[2].tb_lineno)\n1 / 0\n",
    "SIGKILL": "import os\nprint('last words', end='')\nos.kill(os.getpid(), 9)\n",
    "SIGTERM": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "atexit": "import atexit, __main__\natexit.register(lambda: print(__file__, __main__.atexit))\nraise SystemExit\n",
    "threads": "import threading as t, time\nt.Timer(0.1, lambda: print(__name__)).start()\nprint(1)\n",
    "finalizers": "class A:\n    def __del__(self):\n        print('gone', sorted(globals()) != [])\na = A()\n",
    "os._exit": "import os\nos._exit(9)\n",
    "streams": "import os, sys\nsys.stdout.write('1')\nsys.stderr.write('2')\nos.system('echo 3')\nos.write(2, b'4')\n",
    "who": WHO,
    "pools": POOLS,
    "a dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(1), A.__module__)\n",
    "no future": "print(__annotations__)\nx: 1 + 1\nprint(__annotations__)\n",
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_script_says_and_ends_as_one_in_a_process_of_its_own(workdir: Path, end: str) -> None:
    path = str(script(workdir, ENDS[end]))
    assert forked_run(path, "a b", "--x=é") == own_run(path, "a b", "--x=é")


def test_a_fault_is_told_with_the_scripts_frames_first(workdir: Path) -> None:
    path = str(script(workdir, "import faulthandler\nfaulthandler.enable()\nimport ctypes\nctypes.string_at(0)\n"))
    (code, text), (own_code, own) = forked_run(path), own_run(path)
    frames = [[line for line in one.splitlines() if line.startswith("  File")] for one in (text, own)]
    assert code == own_code == -signal.SIGSEGV and frames[0][: len(frames[1])] == frames[1] != []


def test_so_does_a_module_and_a_script_behind_a_link(workdir: Path) -> None:
    (workdir / "pkg").mkdir()
    (workdir / "pkg/part.py").write_text("value = 5\n")
    (workdir / "pkg/train.py").write_text(MODULE)
    assert forked_run("-m", "pkg.train", "--x") == own_run("-m", "pkg.train", "--x")
    (workdir / "link.py").symlink_to(
        script(workdir / "pkg", "import part, sys\nprint(part.value, __file__, sys.argv)\n")
    )
    assert forked_run("link.py") == own_run("link.py") == (0, f"5 {workdir}/link.py ['link.py']\n")


def test_a_module_of_the_users_may_have_our_name(workdir: Path) -> None:
    (workdir / "code").mkdir()
    (workdir / "code/launcher.py").write_text("name = 'mine'\n")
    path = str(script(workdir / "code", "import launcher\nprint(launcher.name)\n"))
    assert forked_run(path) == (0, "mine\n")


def test_a_fork_whose_torchrun_ends_before_its_order_ends_too(tmp_path: Path) -> None:
    text = "from launcher.train import forked\nprint(*[one.pid for one in forked.fork(2)])\n"
    done = subprocess.run([sys.executable, "-c", text], env=environment(), capture_output=True, text=True, check=True)
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in done.stdout.split()), 10)
    assert len(done.stdout.split()) == 2 and done.stderr == ""


def test_what_is_done_aside_leaves_its_environment_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD", "x")

    def task() -> None:
        os.environ["NEW"] = "a\nb"
        del os.environ["OLD"]
        sys.modules["imported_aside"] = sys

    forked.aside(task)
    assert os.environ.pop("NEW") == "a\nb" and "OLD" not in os.environ and "imported_aside" not in sys.modules
    with pytest.raises(RuntimeError, match=r"^FSDP needs GPUs$"):
        forked.aside(lambda: (_ for _ in ()).throw(RuntimeError("FSDP needs GPUs")))
    with pytest.raises(RuntimeError, match="ended with -9"):
        forked.aside(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_script_beside_which_lies_the_name_of_a_loaded_module_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "train.py").touch()
    assert forked.why_not(str(tmp_path)) == ""
    (tmp_path / "json.py").touch()
    assert "json.py has the name of a module that is loaded already" in forked.why_not(str(tmp_path))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, for a fake of CUDA's driver library")
@pytest.mark.parametrize(("code", "said"), [(0, "CUDA is initialised already, which no fork survives"), (3, "")])
def test_a_process_that_has_initialised_cuda_is_not_forked(tmp_path: Path, code: int, said: str) -> None:
    """Of the driver there is a fake of the one function that is asked, with the codes of cuda.h."""
    library = tmp_path / "libcuda.so.1"
    source = f"int cuDeviceGetCount(int *count) {{ *count = 1; return {code}; }}"
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", str(library)]
    subprocess.run(["gcc", *options], input=source, text=True, check=True)
    text = (
        "import ctypes\nfrom launcher.train import forked\nctypes.CDLL('./libcuda.so.1')\nprint(forked.why_not('.'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{said}\n"


# which scripts are forked


FORKED = [
    "import torch\n",
    '"""A text."""\nfrom __future__ import annotations\nimport os\nimport numpy as np\nN = 5\nfrom torch import nn\n',
    "import sys\nfrom pathlib import Path\nsys.path.append(str(Path('a').parent))\nimport gymnasium\nimport torch\n",
    "def f():\n    import isaacgym\nimport torch.nn as nn\nimport isaacgym\n",
]
SPAWNED = {
    "import isaacgym\nimport torch\n": "train it.py imports isaacgym before torch",
    "from . import x\nimport torch\n": "train it.py imports from its package before torch",
    "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch\n": "line 2 of train it.py comes before torch",
    "import os\nos.environ.update(A='4')\nimport torch\n": "line 2 of train it.py comes before torch is imported",
    "try:\n    import isaacgym\nexcept ImportError: ...\nimport torch\n": "line 1 of train it.py comes before torch",
    "print(1)\n": "line 1 of train it.py comes before torch",
    "def main():\n    import torch\n": "train it.py does not import torch at its top",
    "def f(:\n": "train it.py cannot be looked at",
    "import \0": "train it.py cannot be looked at",
}


def start_of(*overrides: str) -> Start:
    config = compose(overrides).config
    validate(config)
    return choose(config, Path.cwd().joinpath)


SCRIPT = ("task=script", "library=torchrun", "task.path='train it.py'")


def test_a_script_is_forked_if_it_imports_torch_before_it_does_anything_else(workdir: Path) -> None:
    config = compose(SCRIPT).config
    for text in FORKED:
        script(workdir, text)
        assert choose(config, workdir.joinpath).method == "fork", text
    for text, reason in SPAWNED.items():
        script(workdir, text)
        start = choose(config, workdir.joinpath)
        assert (start.method, start.reason[: len(reason)]) == ("spawn", reason)


def test_a_module_is_looked_at_with_the_packages_that_it_lies_in(workdir: Path) -> None:
    (workdir / "pkg").mkdir()
    (workdir / "pkg/train.py").write_text("import torch\n")
    words = ("task=script", "library=torchrun", "task.module=pkg.train")
    assert start_of(*words).method == "fork"
    (workdir / "pkg/__init__.py").write_text("import isaacgym\n")
    assert start_of(*words).reason == "__init__.py imports isaacgym before torch"
    assert "cannot be looked at" in start_of("task=script", "library=torchrun", "task.module=elsewhere").reason


def test_what_makes_an_optimizer_has_its_slow_part_imported_once(workdir: Path) -> None:
    script(workdir, "import torch\noptimizer = torch.optim.Adam([])\n")
    assert start_of(*SCRIPT).preload == ("torch._dynamo",)


@pytest.mark.parametrize("library", ["rsl_rl", "rl_games", "skrl", "skrl_jax"])
def test_the_rl_libraries_are_forked(library: str) -> None:
    assert start_of("task=cartpole", f"library={library}").method == "fork"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["task=isaac_cartpole", "library=isaaclab"], "Isaac Sim"),
        (["cluster=apptainer", "cluster.container.image=x.sif"], "container"),
        (["cluster.start=spawn"], "cluster.start=spawn"),
    ],
)
def test_what_is_not_known_to_be_safe_is_spawned_and_the_plan_says_why(words: list[str], reason: str) -> None:
    start = start_of(*words)
    assert start.method == "spawn" and reason in start.reason
    if reason != "cluster.start=spawn":
        with pytest.raises(UserError, match=r"cluster.start=fork is not to be had"):
            start_of(*words, "cluster.start=fork")


def test_a_dry_run_shows_the_choice(launch: Launch, workdir: Path) -> None:
    script(workdir, "import isaacgym\nimport torch\n")
    assert "start      spawn: train it.py imports isaacgym before torch" in launch(*SCRIPT, "dry_run=true").stdout
    assert "start      fork: cluster.start=fork" in launch(*SCRIPT, "dry_run=true", "cluster.start=fork").stdout


# with torch


LOADERS = """\
import json, os, random, sys
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.tensor([index, os.getpid() != os.getppid()])

def main():
    facts = {"tasks": len(os.listdir("/proc/self/task")), "omp": os.environ["OMP_NUM_THREADS"]}
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for method in ("spawn", "fork"):
        for batch in DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context=method):
            model(batch.float()).sum().backward()
            optimizer.step()
    random_numbers = [random.random(), float(np.random.rand())]
    facts |= {"threads": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}
    facts |= {"seed": torch.initial_seed(), "weights": [p.tolist() for p in model.parameters()]}
    facts |= {"cuda": torch.cuda.is_available(), "bad_fork": torch.cuda._is_in_bad_fork()}
    print("FACTS", json.dumps(facts), flush=True)
    print("RANDOM", json.dumps(random_numbers), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.manual_seed(1)
    main()
"""


def said(run: Path, word: str) -> list[Any]:
    logs = [(run / f"attempts/000/rank-{rank}.log").read_text() for rank in (0, 1)]
    return [json.loads(line.partition(" ")[2]) for log in logs for line in log.splitlines() if line.startswith(word)]


@pytest.mark.train
def test_data_loaders_of_either_kind_threads_and_seeds_are_those_of_spawned_ranks(
    launch: Launch, workdir: Path
) -> None:
    script(workdir, LOADERS)
    facts: dict[str, list[Any]] = {}
    for method in ("fork", "spawn"):
        done = launch(*SCRIPT, "cluster.nproc_per_node=2", f"cluster.start={method}", f"runs_dir={method}/runs")
        assert done.returncode == 0, done.stderr
        run = only_run(workdir / method)
        facts[method] = said(run, "FACTS")
        numbers = said(run, "RANDOM")
        assert numbers[0][0] != numbers[1][0] and numbers[0][1] != numbers[1][1]
        assert "the ranks are spawned" not in (run / "attempts/000/node-0.log").read_text()
    assert facts["fork"] == facts["spawn"] and len(facts["fork"]) == 2


WAITS = """\
import os, signal, sys, time
from pathlib import Path
import torch
if os.environ["RANK"] == "{bad}":
    while not Path("deaf").exists():
        time.sleep(0.05)
    os.kill({victim}, signal.SIGKILL)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(print("told to end", flush=True)))
Path("deaf").touch()
Path(f"deaf-{{os.environ['RANK']}}").touch()
while True:
    time.sleep(1)
"""
FORKED_TWO = (*SCRIPT, "cluster.nproc_per_node=2", "cluster.start=fork", "retry.in_job=false", "retry.crash=0")


@pytest.mark.train
@pytest.mark.parametrize(("victim", "rank"), [("os.getpid()", 1), ("os.getppid()", None)])
def test_a_killed_rank_or_torchrun_leaves_no_forked_rank_behind(
    launch: Launch, workdir: Path, victim: str, rank: int | None
) -> None:
    script(workdir, WAITS.format(bad=1, victim=victim))
    assert launch(*FORKED_TWO).returncode == 1
    result = result_of(only_run(workdir))
    assert (result["cause"], result["rank"], result["signal"]) == ("crash", rank, "SIGKILL")
    assert not processes_of(only_run(workdir))


@pytest.mark.train
def test_a_stop_reaches_all_forked_ranks(workdir: Path) -> None:
    script(workdir, WAITS.format(bad="none", victim="0") + "    if told:\n        sys.exit()\n")
    command = subprocess.Popen(launcher_command(*FORKED_TWO), cwd=workdir, env=environment(), stdout=subprocess.DEVNULL)
    wait_until(lambda: len(list(workdir.glob("deaf-*"))) == 2)
    run = only_run(workdir)
    shown = [words.rstrip("\0").split("\0")[2:] for words in processes_of(run).values()]
    assert shown.count([str(workdir / "train it.py")]) == 2
    command.send_signal(signal.SIGINT)
    assert command.wait(PATIENCE * 60) == 130
    for rank in (0, 1):
        assert "told to end" in (run / f"attempts/000/rank-{rank}.log").read_text()
    assert not processes_of(run)


@pytest.mark.train
def test_a_node_on_which_a_thread_runs_already_spawns_its_ranks_and_says_so(launch: Launch, workdir: Path) -> None:
    (workdir / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(900,), daemon=True).start()\n"
    )
    script(workdir, "import sys\nprint('threaded' in sys.modules)\n")
    done = launch(*SCRIPT, "cluster.start=fork", "library.preload=[threaded]")
    assert done.returncode == 0 and "False" in done.stdout
    log = (only_run(workdir) / "attempts/000/node-0.log").read_text()
    assert "the ranks are spawned, each with its own import of torch: 1 threads run beside torchrun already" in log
