"""Runs on this machine: real training, real torchrun, a real terminal."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, Launch, environment, launcher_command, only_run, result_of, runs_in, script
from tests.test_cli import in_terminal

pytestmark = pytest.mark.train

SCRIPT = ("task=script", "library=torchrun", "task.path='train it.py'")


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """The condition's value once it is true; waits by looking, not by guessing how long it takes."""
    deadline = time.monotonic() + PATIENCE * seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return value


def processes_of(run: Path) -> dict[int, str]:
    """Ids and command lines of live processes that belong to a run; its agent does not count."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"LAUNCHER_RUN_DIR={run}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_text()
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_cartpole_is_solved(launch: Launch, workdir: Path, ranks: int) -> None:
    done = launch(f"cluster.nproc_per_node={ranks}")
    assert done.returncode == 0, done.stderr
    run = only_run(workdir)
    result = result_of(run)
    assert (result["outcome"], result["cause"], result["world_size"]) == ("completed", "solved", ranks)
    assert result["metrics"]["length_mean"] >= 475
    assert result["ranks_in_sync"] is True
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("completed: solved") and str(run) in last
    assert [line["iteration"] for line in metrics_of(run)] == list(range(1, result["iteration"] + 1))
    assert {"time", "env_steps", "fps", "return_mean", "length_mean"} <= metrics_of(run)[-1].keys()
    assert list((run / "tensorboard").glob("events.*"))
    assert not processes_of(run)


def test_ranks_see_different_worlds_from_the_same_seed_and_the_same_ones_again(launch: Launch, workdir: Path) -> None:
    def first_observations() -> list[str]:
        launch("cluster.nproc_per_node=2", "max_iterations=1", "seed=5")
        run = runs_in(workdir / "runs")[-1]
        logs = [(run / "attempts/000" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
        return [line for log in logs for line in log.splitlines() if line.startswith("first observation")]

    first = first_observations()
    assert len(set(first)) == 2
    assert first_observations() == first


def test_resume_goes_on_after_the_saved_iteration_and_the_maximum_is_the_total(launch: Launch, workdir: Path) -> None:
    never = "task.solved=null"
    assert launch("max_iterations=3", "checkpoint.every=2", never).returncode == 0
    first = only_run(workdir)
    assert sorted(path.name for path in (first / "checkpoints").iterdir()) == ["000000002", "000000003"]
    assert launch("max_iterations=5", "resume=latest", never).returncode == 0
    second = runs_in(workdir / "runs")[-1]
    assert [line["iteration"] for line in metrics_of(second)] == [4, 5]
    assert result_of(second)["cause"] == "max_iterations"
    done = launch("max_iterations=5", f"resume={second.name}", never)
    assert done.returncode == 0
    assert "iteration 5" in done.stdout


def test_a_rank_that_exits_is_named_with_its_code_and_the_others_end(launch: Launch, workdir: Path) -> None:
    script(workdir, "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(100)\n")
    done = launch(*SCRIPT, "cluster.nproc_per_node=2")
    result = result_of(only_run(workdir))
    assert done.returncode == 1
    assert (result["outcome"], result["cause"], result["rank"], result["exit_code"]) == ("failed", "crash", 1, 7)
    assert re.search(rf"^failed: rank 1 on {os.uname().nodename} exited with code 7", done.stderr, re.M)
    assert not processes_of(only_run(workdir))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise ValueError('boom é')", {"exit_code": 1, "message": "ValueError: boom é"}),
        ("os.kill(os.getpid(), 9)", {"signal": "SIGKILL", "exit_code": None}),
        ("import ctypes; ctypes.string_at(0)", {"signal": "SIGSEGV", "exit_code": None}),
        ("import nothing_of_the_kind", {"message": "ModuleNotFoundError: No module named 'nothing_of_the_kind'"}),
        ("def f(:", {"message": "SyntaxError: invalid syntax"}),
    ],
)
def test_the_cause_of_a_failure_is_told(launch: Launch, workdir: Path, fault: str, expected: dict[str, Any]) -> None:
    script(workdir, f"import os\n{fault}\n")
    assert launch(*SCRIPT).returncode == 1
    result = result_of(only_run(workdir))
    assert {key: result[key] for key in expected} == expected
    assert Path(result["log"]).is_file()


def test_an_interpreter_that_does_not_exist_is_said_so(launch: Launch, workdir: Path) -> None:
    script(workdir, "")
    done = launch(*SCRIPT, "cluster.python=/nowhere/python")
    assert done.returncode == 1
    assert "cannot start /nowhere/python" in done.stderr


def test_a_script_shows_rank_0s_output_and_gets_its_arguments_and_the_contract(launch: Launch, workdir: Path) -> None:
    script(workdir, """\
import json, os, sys
from pathlib import Path
print("args", json.dumps(sys.argv[1:]), "rank", os.environ["RANK"])
print("to stderr", file=sys.stderr)
names = ("LAUNCHER_RUN_DIR", "LAUNCHER_CHECKPOINT_DIR", "LAUNCHER_ATTEMPT", "LAUNCHER_STOP_FILE", "LAUNCHER_RESUME")
print(json.dumps({name: os.environ[name] for name in names}))
with open(os.environ["LAUNCHER_PROGRESS"], "a") as file:
    file.write(json.dumps({"iteration": 3, "return_mean": 1.5}) + "\\n")
assert Path.cwd() == Path(os.environ["PWD"]), (Path.cwd(), os.environ["PWD"])
""")  # fmt: skip
    done = launch(*SCRIPT, "task.args=['a b',\"it's\",'é']", "cluster.env.X='mlx5_0:1,mlx5_1:1'", PWD=str(workdir))
    assert done.returncode == 0, done.stderr
    assert 'args ["a b", "it\'s", "\\u00e9"] rank 0' in done.stdout
    assert "to stderr" in done.stdout
    assert str(only_run(workdir)) in done.stdout
    assert '"iteration": 3' not in done.stdout
    assert json.loads(launch("status", "--json").stdout)[0]["iteration"] == 3


def test_environment_values_of_any_content_reach_the_ranks(launch: Launch, workdir: Path) -> None:
    script(workdir, "import os\nprint('got', ascii(os.environ['X']))\n")
    value = "mlx5_0:1,mlx5_1:1 = $HOME `x` 'q' \"d\" é\\n"
    from launcher.config.literals import quote

    assert f"got {value!a}" in launch(*SCRIPT, f"cluster.env.X={quote(value)}").stdout


def test_a_module_is_run_as_torchrun_would(launch: Launch, workdir: Path) -> None:
    (workdir / "mine").mkdir()
    (workdir / "mine" / "train.py").write_text("print('module', __name__, __package__)\n")
    done = launch("task=script", "library=torchrun", "task.module=mine.train")
    assert "module __main__ mine" in done.stdout, done.stderr


def test_the_planned_world_is_what_a_rank_must_see(workdir: Path) -> None:
    program = "from launcher.train import Rank\nwith Rank('cpu'): pass\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(LAUNCHER_WORLD_SIZE="4"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "world of 1 ranks, and the plan has 4" in done.stderr


def test_a_process_group_of_fewer_ranks_than_torchrun_has_started_is_refused(workdir: Path) -> None:
    program = """\
import torch.distributed as dist
from launcher.train import Rank
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with Rank("cpu"): pass
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(RANK="0", WORLD_SIZE="2"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the process group has 1 ranks, and torchrun has started 2" in done.stderr


DRIFT = """\
import torch
from launcher.train import Rank
with Rank("cpu", checkpoint_keep=1) as rank:
    parameter = torch.zeros(1000)
    rank.check_sync([parameter])
    if rank.rank == 1:
        parameter[500] += 1e-45  # the smallest step there is
    rank.check_sync([parameter])
"""


def test_ranks_whose_parameters_differ_by_one_bit_fail_by_that_name(launch: Launch, workdir: Path) -> None:
    script(workdir, DRIFT)
    done = launch(*SCRIPT, "cluster.nproc_per_node=2")
    result = result_of(only_run(workdir))
    assert done.returncode == 1
    assert (result["cause"], result["ranks_in_sync"]) == ("ranks_out_of_sync", False)
    assert "the parameters of ranks [1] differ" in result["message"]


STOPPABLE = """\
import time
import torch
from launcher.train import Rank
with Rank("cpu") as rank:
    for iteration in range(10_000):
        rank.progress(iteration + 1)
        if rank.should_stop():
            rank.checkpoints.save(iteration + 1, {"iteration": iteration + 1})
            rank.report()
            break
        time.sleep(0.02)
"""


def started(workdir: Path) -> Path:
    """The run's directory, once its training is under way."""
    wait_until(lambda: list(workdir.glob("runs/*/metrics.jsonl")))
    return only_run(workdir)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_in_a_terminal_saves_and_stops_all_ranks(workdir: Path, ranks: int) -> None:
    script(workdir, STOPPABLE)
    pid, terminal = in_terminal(launcher_command(*SCRIPT, f"cluster.nproc_per_node={ranks}"), workdir)
    run = started(workdir)
    os.write(terminal, b"\x03")
    output = read_all(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert "save" in output and "stopped: interrupted" in output
    result = result_of(run)
    assert (result["outcome"], result["cause"]) == ("stopped", "interrupted")
    assert (run / "checkpoints" / f"{result['iteration']:09}" / "seal.json").is_file()
    assert not processes_of(run)


DEAF = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.environ["LAUNCHER_PROGRESS"], "w") as file:
    file.write('{"iteration": 1}\\n')
time.sleep(300)
"""


def test_a_second_ctrl_c_stops_at_once_what_will_not_end(workdir: Path) -> None:
    script(workdir, DEAF)
    pid, terminal = in_terminal(launcher_command(*SCRIPT, "watch.stop_grace=300"), workdir)
    run = started(workdir)
    os.write(terminal, b"\x03")
    wait_until(lambda: '"stop"' in (run / "attempts/000/events.jsonl").read_text())
    time.sleep(1.5)  # a second one within a second would be the same keystroke
    os.write(terminal, b"\x03")
    began = time.monotonic()
    read_all(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert time.monotonic() - began < PATIENCE * 10
    assert not processes_of(run)


def read_all(terminal: int) -> str:
    """What a terminal shows until its program ends."""
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode(errors="replace")


def test_a_terminal_shows_one_line_of_progress_that_is_drawn_over(workdir: Path) -> None:
    pid, terminal = in_terminal(launcher_command("max_iterations=6", "task.solved=null"), workdir)
    output = read_all(terminal)
    os.waitpid(pid, 0)
    drawn = re.findall(r"\r\x1b\[Kiteration (\d)/6 · [^\r\n]*frames/s", output)
    assert drawn[-1] == "6"
    assert output.count("\n") <= 4


def test_when_the_command_is_killed_the_training_saves_and_ends(workdir: Path) -> None:
    script(workdir, STOPPABLE)
    command = subprocess.Popen(launcher_command(*SCRIPT), cwd=workdir, env=environment(), stdout=subprocess.DEVNULL)
    run = started(workdir)
    command.kill()
    command.wait()
    wait_until((run / "result.json").exists)
    assert result_of(run)["outcome"] == "stopped"
    wait_until(lambda: not processes_of(run), 10)


def test_status_logs_and_cancel_of_a_local_run(launch: Launch, workdir: Path) -> None:
    script(workdir, "print('hello from the script')\n" + STOPPABLE)
    command = subprocess.Popen(launcher_command(*SCRIPT), cwd=workdir, env=environment(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    run = started(workdir)
    (status,) = json.loads(launch("status", "--json").stdout)
    assert (status["run_id"], status["state"], status["where"]) == (run.name, "running", os.uname().nodename)
    assert status["iteration"] >= 1
    assert "hello from the script" in launch("logs", run.name).stdout
    assert launch("cancel", run.name).returncode == 0
    command.wait(PATIENCE * 60)
    assert "stopped" in launch("status", run.name).stdout
    again = launch("cancel", run.name)
    assert (again.returncode, "not running" in again.stderr) == (2, True)


def test_torchrun_killed_leaves_no_rank_behind(launch: Launch, workdir: Path) -> None:
    script(workdir, "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(100)\n")
    done = launch(*SCRIPT)
    assert done.returncode == 1
    result = result_of(only_run(workdir))
    assert (result["cause"], result["rank"], result["signal"]) == ("crash", None, "SIGKILL")
    assert f"torchrun on {os.uname().nodename} was killed by SIGKILL" in done.stderr
    assert not processes_of(only_run(workdir))


FAILS = """\
import os, sys
from launcher.train import Rank
with Rank("cpu") as rank:
    found = rank.checkpoints.load(rank.device)
    for done in range(found[0]["iteration"] + 1 if found else 1, 61):
        rank.progress(done)
        if done % 20 == 0:
            rank.checkpoints.save(done, {"iteration": done})
        if done == 35 and (sys.argv[1:] or os.environ["LAUNCHER_ATTEMPT"] == "0"):
            raise RuntimeError("of iteration 35")
    rank.report("max_iterations")
"""


def test_a_run_that_crashes_once_goes_on_from_its_checkpoint_and_completes(launch: Launch, workdir: Path) -> None:
    script(workdir, FAILS)
    done = launch(*SCRIPT)
    assert done.returncode == 0, done.stderr
    run = only_run(workdir)
    result = result_of(run)
    assert (result["outcome"], result["iteration"], result["attempts"]) == ("completed", 60, 2)
    assert result["resumed_at"] == 20
    assert [line["iteration"] for line in metrics_of(run)] == list(range(1, 61))
    verdict = json.loads((run / "attempts/000/verdict.json").read_text())
    assert (verdict["cause"], verdict["iteration"], verdict["then"]) == ("crash", 35, "again in this job")
    assert "RuntimeError: of iteration 35" in verdict["message"]


def test_a_run_that_crashes_at_the_same_iteration_again_fails_and_says_so(launch: Launch, workdir: Path) -> None:
    script(workdir, FAILS)
    done = launch(*SCRIPT, "task.args=[always]")
    assert done.returncode == 1
    result = result_of(only_run(workdir))
    assert (result["outcome"], result["cause"], result["attempts"]) == ("failed", "crash", 2)
    assert "not tried again: it failed at the same iteration before" in done.stderr
    launch("resume", only_run(workdir).name)  # a person may try all the same, with budgets that begin anew
    assert result_of(only_run(workdir))["attempts"] == 4


def test_no_retry_is_made_where_none_is_wanted(launch: Launch, workdir: Path) -> None:
    script(workdir, FAILS)
    assert launch(*SCRIPT, "retry.crash=0").returncode == 1
    assert result_of(only_run(workdir))["attempts"] == 1


@pytest.mark.parametrize(
    "wrong", ["retry.crash=-1", "retry.crash=often", "retry.avoid_node=1h", "cluster.spare_nodes=1"]
)
def test_a_wrong_budget_is_a_mistake_of_one_line(launch: Launch, wrong: str) -> None:
    done = launch(wrong)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and wrong.partition("=")[0] in done.stderr


def test_the_agent_is_light(workdir: Path) -> None:
    script(workdir, STOPPABLE)
    command = subprocess.Popen(launcher_command(*SCRIPT), cwd=workdir, env=environment(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    run = started(workdir)
    agent = json.loads((run / "submission.json").read_text())["pid"]
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{agent}/status").read_text())
    command.send_signal(signal.SIGINT)
    command.wait(PATIENCE * 60)
    assert int(peak) < 30 * 1024


@pytest.mark.parametrize(("task", "ranks"), [("cartpole", 1), ("cartpole", 2), ("pendulum", 1)])
def test_a_resumed_training_ends_bit_for_bit_where_an_undisturbed_one_does(
    launch: Launch, workdir: Path, task: str, ranks: int
) -> None:
    import torch

    common = (
        f"task={task}",
        f"cluster.nproc_per_node={ranks}",
        "task.solved=null",
        "num_envs=16",
        "checkpoint.every=4",
    )
    for more in (["max_iterations=8"], ["max_iterations=4"], ["max_iterations=8", "resume=latest"]):
        assert launch(*common, *more).returncode == 0
    runs = runs_in(workdir / "runs")
    states = [
        torch.load(run / "checkpoints/000000008/state.pt", weights_only=True)["algorithm"] for run in (runs[0], runs[2])
    ]
    for part in ("actor_state_dict", "critic_state_dict"):
        for name, tensor in states[0][part].items():
            assert torch.equal(tensor, states[1][part][name]), f"{part} {name}"
    assert [line["learning_rate"] for line in metrics_of(runs[2])] == [
        line["learning_rate"] for line in metrics_of(runs[0])[4:]
    ]


def test_ctrl_c_before_the_ranks_are_there_ends_at_once(workdir: Path) -> None:
    pid, terminal = in_terminal(launcher_command("watch.stop_grace=300"), workdir)
    wait_until(lambda: list(workdir.glob("runs/*/attempts/000/node-0.log")))
    began = time.monotonic()
    os.write(terminal, b"\x03")
    read_all(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert time.monotonic() - began < PATIENCE * 10
    assert result_of(only_run(workdir))["cause"] == "interrupted"
    assert not processes_of(only_run(workdir))
