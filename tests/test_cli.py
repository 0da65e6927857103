"""The command line as a user meets it: help, dry runs, mistakes. Nothing here needs torch."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from launcher.cli.live import LiveLine
from launcher.records.checkpoints import seal_in_place
from tests.conftest import ROOT, Launch, environment, launcher_command, only_run, script

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from launcher.cli.main import main; sys.exit(main())"


def without_torch(workdir: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line where any import of torch fails."""
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(
        command, cwd=workdir, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def test_every_verb_teaches_its_own_use(launch: Launch) -> None:
    listed = re.search(r"there are: (.*)\)", launch("nix").stderr)
    assert listed is not None
    for verb in listed[1].split(", "):
        done = launch(verb, "--help")
        assert done.returncode == 0
        assert re.match(rf"usage: python -m launcher {verb}\b", done.stdout), done.stdout


def test_a_verb_that_lacks_a_word_or_gets_a_strange_one_says_so_in_one_line(launch: Launch) -> None:
    listed = re.search(r"there are: (.*)\)", launch("nix").stderr)
    assert listed is not None
    for verb in listed[1].split(", "):
        done = launch(verb, "--strange")
        assert done.returncode == 2 and not done.stdout, verb
        assert re.fullmatch(r"launcher: .*(--strange|required).*\n", done.stderr), done.stderr


def test_a_script_can_be_printed(launch: Launch, workdir: Path) -> None:
    done = launch("render", "cluster=a100x2", "-o", "-")
    assert done.stdout.startswith("#!") and "#SBATCH --nodes=1" in done.stdout
    assert str(only_run(workdir)) in done.stderr and not (workdir / "-").exists()


def test_commands_start_nothing_that_could_be_waited_for(launch: Launch, workdir: Path) -> None:
    done = launch("commands", "cluster.hosts=[a,b]", "wait=true")
    assert done.returncode == 2 and "leave wait=true out" in done.stderr
    assert not list(workdir.iterdir())


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_teaches_and_needs_no_torch(workdir: Path, word: str) -> None:
    done = without_torch(workdir, word)
    assert done.returncode == 0
    for word in ("cluster=a100x2", "cartpole", "rsl_rl", "status", "logs", "cancel", "wait=true", "exit codes"):
        assert word in done.stdout


def test_a_dry_run_shows_the_whole_plan_and_starts_nothing_and_needs_no_torch(workdir: Path) -> None:
    arguments = [
        "cluster=a100x2",
        "cluster.nodes=2",
        "nccl=[p2p_off]",
        "cluster.env.WANDB_API_KEY=hush",
        "dry_run=true",
    ]
    done = without_torch(workdir, *arguments)
    assert done.returncode == 0, done.stderr
    for text in (
        "#SBATCH --gpus-per-node=a100:2", "2 × 2 = 4", "4 × 64 = 256", "NCCL_P2P_DISABLE", "nccl p2p_off", "node-rank",
        "LAUNCHER_RUN_DIR",
    ):  # fmt: skip
        assert text in done.stdout
    assert "hush" not in done.stdout
    assert not list(workdir.iterdir())


def test_the_verb_plan_is_a_dry_run_for_programs_too(launch: Launch, workdir: Path) -> None:
    done = launch("plan", "--json", "cluster=a100x2", "cluster.nodes=3")
    assert json.loads(done.stdout)["resources"]["nodes"] == 3
    assert not list(workdir.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "answer"),
    [
        (["taks=cartpole"], 2, "did you mean task?"),
        (["cluster=a100x3"], 2, "a100x2"),
        (["cluster.time=1h"], 2, "1:30:00"),
        (["--verbos"], 2, "no option"),
        (["resume", "nix"], 2, "no run 'nix'"),
        (["statsu"], 2, "there is no command 'statsu'; did you mean status?"),
        (["seed=1,2"], 2, "with -m it is a sweep"),
        (["plan", "-m", "seed=1,2"], 2, "-m … dry_run=true"),
        (["cluster=a100x2", "cluster.extra_directives.nodes=3", "dry_run=true"], 2, "use cluster.nodes"),
        (["task=script", "library=torchrun", "task.path=nix.py"], 2, "no file"),
        (["runs_dir=/proc/nix"], 2, "runs_dir"),
        (["resume=latest"], 2, "has a checkpoint"),
        (["resume=nix"], 2, "no run 'nix'"),
        (["status", "nix"], 2, "no run 'nix'"),
        (["logs", "nix"], 2, "no run 'nix'"),
        (["cancel", "nix"], 2, "no run 'nix'"),
        (["cancel"], 2, "RUN"),
        (["logs", "--rank", "x", "nix"], 2, "--rank"),
        (["render", "cluster=a100x2"], 2, "-o run.sbatch"),
        (["render", "-o", "x.sbatch"], 2, "choose a cluster"),
        (["render", "cluster=a100x2", "--template", "nix", "-o", "x.sbatch"], 2, "no file 'nix'"),
        (["commands"], 2, "cluster.hosts is missing"),
        (["commands", "cluster.hosts=[a,a]"], 2, "names a twice"),
        (["cluster.hosts=[a,b]"], 2, "launcher commands"),
        (["--config-dir"], 2, "needs a value"),
        (["--config-dir", "/nix"], 2, "/nix"),
    ],
)
def test_a_mistake_ends_in_a_short_answer_and_leaves_nothing(
    launch: Launch, workdir: Path, arguments: list[str], code: int, answer: str
) -> None:
    done = launch(*arguments)
    assert done.returncode == code
    assert answer in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert not list(workdir.iterdir())


def test_without_slurm_the_answer_names_the_ways_out(launch: Launch, workdir: Path) -> None:
    done = launch("cluster=a100x2", PATH=f"{Path(sys.executable).parent}:/nowhere")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    for text in ("sbatch not found", "cluster=local", "render"):
        assert text in done.stderr
    assert not list(workdir.iterdir())


def test_status_of_nothing_is_fine(launch: Launch) -> None:
    assert launch("status").returncode == 0
    assert launch("status", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    "arguments", [["--cfg", "job"], ["--info", "defaults"], ["--hydra-help"], ["--cfg", "job", "seed=3"]]
)
def test_hydras_own_flags_work(launch: Launch, workdir: Path, arguments: list[str]) -> None:
    done = launch(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(workdir.iterdir())


def test_a_rendered_script_is_valid_shell_and_starts_the_agent(launch: Launch, workdir: Path) -> None:
    done = launch("render", "cluster=a100x2", "cluster.nodes=2", "cluster.setup=[echo hi]", "-o", "run it.sbatch")
    assert done.returncode == 0, done.stderr
    path = workdir / "run it.sbatch"
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text()
    for line in ("#SBATCH --nodes=2", "echo hi", "--kill-on-bad-exit=1", "launcher.node"):
        assert line in text


def test_the_configuration_of_a_run_is_a_configuration(launch: Launch, workdir: Path) -> None:
    assert launch("render", "cluster=a100x2", "seed=7", "nccl=[p2p_off]", "-o", "x.sbatch").returncode == 0
    again = ("plan", "--json", "--config-dir", str(only_run(workdir)), "--config-name", "config")
    plan = json.loads(launch(*again).stdout)
    assert (plan["training"]["seed"], plan["resources"]["nproc_per_node"]) == (7, 2)
    assert "nccl p2p_off" in [setting["origin"] for setting in plan["environment"]]
    assert json.loads(launch(*again, "seed=8").stdout)["training"]["seed"] == 8
    for name, answer in (("nix", "there is no nix.yaml in"), ("part", "is no whole configuration")):
        (only_run(workdir) / "part.yaml").write_text("seed: 3\n")
        done = launch(*again[:-1], name)
        assert (done.returncode, answer in done.stderr) == (2, True)


def test_a_run_can_be_composed_from_any_directory_with_a_users_own_profiles(launch: Launch, workdir: Path) -> None:
    (workdir / "conf" / "cluster").mkdir(parents=True)
    (workdir / "conf" / "cluster" / "lab.yaml").write_text("name: lab\nscheduler: slurm\npartition: gpu long\n")
    done = launch("--config-dir", "conf", "cluster=lab", "dry_run=true")
    assert "#SBATCH --partition='gpu long'" in done.stdout, done.stderr
    assert "lab" in launch("--help", LAUNCHER_CONFIG_DIR=str(workdir / "conf")).stdout


def test_a_script_in_a_directory_with_a_blank_is_shown_quoted(launch: Launch, workdir: Path) -> None:
    script(workdir, "")
    done = launch("task=script", "library=torchrun", "task.path='train it.py'", "dry_run=true")
    assert "'\\''" in done.stdout or '"' in done.stdout
    assert done.returncode == 0


def test_the_reader_of_a_pipe_may_leave(workdir: Path) -> None:
    command = ["bash", "-c", f"{shlex.join(launcher_command('--help'))} | head -1"]
    done = subprocess.run(command, cwd=workdir, env=environment(), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


INTERRUPTED = """\
import os, signal, sys, threading, time
import launcher.cli.main as cli
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
cli._run_verb = lambda *_: time.sleep(9)
sys.exit(cli.main(["status"]))
"""


def test_ctrl_c_before_anything_runs_is_130_without_a_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert not done.stderr


def test_an_installed_wheel_works_without_the_clone(workdir: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(workdir)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = workdir.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(workdir / "installed")
    for arguments in (["--help"], ["render", "cluster=a100x2", "-o", "run.sbatch"]):
        command = launcher_command(*arguments)
        installed = environment(PYTHONPATH=str(workdir / "installed"))
        done = subprocess.run(command, cwd=workdir, env=installed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    agent = only_run(workdir) / "code" / "launcher" / "node" / "agent.py"
    assert agent.read_text() == (workdir / "installed" / "launcher" / "node" / "agent.py").read_text()


def in_terminal(command: list[str], workdir: Path) -> tuple[int, int]:
    """Start a command in a pseudo-terminal of its own; returns its pid and the terminal's end."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(workdir)
        os.execvpe(command[0], command, environment(TERM="xterm", COLUMNS="120"))
    return pid, terminal


def test_a_python_without_our_packages_is_told_so_in_one_line(workdir: Path) -> None:
    command = [sys.executable, "-S", "-m", "launcher", "dry_run=true"]  # -S: without site-packages
    done = subprocess.run(command, cwd=workdir, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has no package" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_library_that_is_not_installed_is_said_so_before_anything_starts(launch: Launch, workdir: Path) -> None:
    done = launch("library.packages=[nothing_of_the_kind]")
    assert done.returncode == 2
    assert "nothing_of_the_kind: pip install 'rl-slurm-launcher[rsl_rl]'" in done.stderr
    assert not list(workdir.iterdir())


def test_a_profile_of_hosts_prints_their_commands_and_a_rerun_does_so_again(launch: Launch, workdir: Path) -> None:
    (workdir / "conf" / "cluster").mkdir(parents=True)
    (workdir / "conf" / "cluster" / "desks.yaml").write_text("name: desks\nscheduler: none\nhosts: desk[1-2]\n")
    done = launch("--config-dir", "conf", "cluster=desks")
    assert done.returncode == 0, done.stderr
    run = only_run(workdir)
    assert f"# on desk2\n{shlex.join(['bash', f'{run}/node.sh', '1'])}\n" in done.stdout
    again = launch("rerun", run.name)
    assert again.returncode == 0, again.stderr
    assert "# on desk1\n" in again.stdout and run.name not in again.stdout.split("# on desk1")[1]


def test_a_damaged_checkpoint_is_refused_with_what_is_wrong_with_it(launch: Launch, workdir: Path) -> None:
    checkpoint = workdir / "checkpoints/000000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.pt").write_bytes(b"x" * 400)
    seal_in_place(checkpoint, 1, 1)
    os.truncate(checkpoint / "state.pt", 10)
    done = launch("resume=checkpoints/000000001", "dry_run=true")
    assert (done.returncode, "state.pt has 10 bytes instead of 400" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("library", "task", "words", "said"),
    [
        ("skrl", {"name": "cartpole", "env": "CartPole-v1"}, [],
         "trained with library=skrl, not rsl_rl: go on with library=skrl, or leave resume out to start anew"),
        ("rsl_rl", {"name": "halfcheetah", "env": "HalfCheetah-v5"}, ["task=walker2d"],
         "trained with task=halfcheetah (HalfCheetah-v5), not task=walker2d (Walker2d-v5): go on with task=h"),
        ("rsl_rl", {"name": "cartpole", "env": "CartPole-v1"}, ["task.env=Pendulum-v1"],
         "trained with task=cartpole (CartPole-v1), not task=cartpole (Pendulum-v1)"),
        ("trl", {"name": "sft", "env": ""}, ["task=dpo", "library=trl"], "trained with task=sft, not task=dpo"),
        ("rsl_rl", {"name": "my_pole", "env": "CartPole-v1"}, [], ""),
        ("torchrun", {"name": "script", "path": "old.py"}, ["task=script", "library=torchrun", "task.path=new.py"], ""),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_library_or_environment_is_refused(
    launch: Launch, workdir: Path, library: str, task: dict[str, str], words: list[str], said: str
) -> None:
    checkpoint = workdir / "runs/old/checkpoints/000000001"
    checkpoint.mkdir(parents=True)
    (workdir / "new.py").touch()
    seal_in_place(checkpoint, 1, 1)
    (workdir / "runs/old/plan.json").write_text(json.dumps({"training": {"library": library, "task": task}}))
    for resume in ("old", "runs/old/checkpoints/000000001"):
        done = launch(*words, f"resume={resume}", "dry_run=true")
        assert (done.returncode, said in done.stderr) == (2 if said else 0, True), done.stderr
        assert done.stderr.count("\n") == bool(said)


def test_a_log_has_each_line_of_progress_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.cli.live._PLAIN_EVERY_S", -1.0)
    line = LiveLine()
    for text in ("one of two", "one of two", "", "one of two", "two of two", "one of two"):
        line.show(text)
    assert capsys.readouterr().out == "one of two\ntwo of two\none of two\n"
