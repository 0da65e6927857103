"""A job runs from a copy of the code: what it holds, what stays as it was, how a run is repeated from it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config.literals import quote
from launcher.errors import UserError
from launcher.submission import provenance, snapshot
from launcher.submission.secrets import mask
from launcher.submission.snapshot import take_snapshot
from tests.conftest import ROOT, Launch, only_run, result_of, runs_in, script
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import job_of, launch_on

TRAIN = ("task=script", "library=torchrun", "task.path=train.py")
ON_SLURM = (*TRAIN, "cluster=a100x2")
RENDER = ("render", *ON_SLURM, "-o", "../run.sbatch")


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: a repository with a commit, where git ignores data and *.pt."""
    path = workdir / "repo"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    for name, text in {".gitignore": "/data/\n*.pt\n", "train.py": "print('as committed')\n", "old.py": ""}.items():
        (path / name).write_text(text)
    git(path, "add", ".")
    git(path, "commit", "-qm", "first")
    (path / "data").mkdir()
    (path / "data" / "set").write_text("large")
    monkeypatch.chdir(path)
    return path


def take(repository: Path, left_out: str = "runs") -> Path:
    target = repository.parent / "copy"
    take_snapshot(target, repository, repository / left_out)
    return target


def test_it_holds_the_work_tree_as_it_is_now(repository: Path) -> None:
    (repository / "train.py").write_text("changed")
    (repository / "run.sh").write_text("new")
    (repository / "run.sh").chmod(0o755)
    (repository / "é 'q'\n").write_text("odd name")
    (repository / "old.py").unlink()
    copy = take(repository)
    assert {path.name for path in copy.iterdir()} == {".gitignore", "train.py", "run.sh", "é 'q'\n", "data"}
    assert (copy / "train.py").read_text() == "changed"
    assert os.access(copy / "run.sh", os.X_OK)
    assert copy.stat().st_mode & 0o777 == 0o700


def test_what_git_ignores_is_linked_so_that_relative_paths_mean_the_same(repository: Path) -> None:
    (repository / "src" / "__pycache__").mkdir(parents=True)
    for name in ("model.pt", "src/a.py", "src/b.pt", "src/__pycache__/a.pyc"):
        (repository / name).write_text(name)
    (repository / ".gitignore").write_text("/data/\n*.pt\n__pycache__\n")
    copy = take(repository)
    assert (copy / "data" / "set").read_text() == "large"
    assert (copy / "data").readlink() == repository / "data"
    assert (copy / "src" / "b.pt").readlink() == repository / "src" / "b.pt"
    assert not (copy / "src" / "a.py").is_symlink()
    assert not (copy / "src" / "__pycache__").exists()


@pytest.mark.parametrize(("runs", "ignored"), [("runs", ""), ("runs", "/runs/\n"), ("data/my runs", "/data/\n")])
def test_the_runs_are_not_part_of_it_whether_git_ignores_them_or_not(repository: Path, runs: str, ignored: str) -> None:
    (repository / ".gitignore").write_text(f"*.pt\n{ignored}")
    (repository / runs / "earlier").mkdir(parents=True)
    (repository / runs / "earlier" / "log").write_text("x")
    (repository / runs / "earlier" / "a.pt").write_text("x")
    copy = take(repository, runs)
    assert not os.path.lexists(copy / runs)
    assert (copy / "data" / "set").read_text() == "large"


def test_the_runs_are_left_out_however_their_path_is_spelled(repository: Path) -> None:
    (repository / "runs").mkdir()
    (repository / "runs" / "log").write_text("x")
    (repository.parent / "link").symlink_to(repository)
    target = repository.parent / "copy"
    take_snapshot(target, repository, repository.parent / "link" / "runs")
    assert not (target / "runs").exists()


def test_links_lead_to_where_they_led(repository: Path) -> None:
    (repository.parent / "outside").write_text("beside the repository")
    (repository / "inside").symlink_to("train.py")
    (repository / "beside").symlink_to("../outside")
    (repository / "nowhere").symlink_to("nix")
    copy = take(repository)
    assert (copy / "inside").readlink() == Path("train.py")
    assert (copy / "beside").read_text() == "beside the repository"
    assert (copy / "nowhere").is_symlink()


def test_submodules_and_repositories_within_are_copied_too(repository: Path) -> None:
    other = repository.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "module.py").write_text("committed")
    git(other, "add", ".")
    git(other, "commit", "-qm", "x")
    git(repository, "submodule", "add", "-q", str(other), "sub")
    shutil.copytree(other, repository / "nested")
    (repository / "sub" / "module.py").write_text("changed")
    (repository / "sub" / "new.py").write_text("new")
    copy = take(repository)
    assert (copy / "sub" / "module.py").read_text() == "changed"
    assert (copy / "sub" / "new.py").read_text() == "new"
    assert (copy / "nested" / "module.py").read_text() == "committed"
    assert not (copy / "nested" / ".git").exists()


def test_a_repository_without_a_commit_will_do(workdir: Path) -> None:
    git(workdir, "init", "-q")
    (workdir / "train.py").write_text("x")
    take_snapshot(workdir.parent / "copy", workdir, workdir / "runs")
    assert (workdir.parent / "copy" / "train.py").read_text() == "x"


def test_one_that_would_be_too_large_is_refused_with_the_largest_file(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_MOST_BYTES", 3 * 1024**2)
    (repository / "big.bin").write_bytes(bytes(4 * 1024**2))
    with pytest.raises(UserError, match=r"'big.bin' with 4 MiB.*\.gitignore.*snapshot=off"):
        take(repository)
    assert not list(repository.parent.glob("*copy*"))


def test_one_that_fails_leaves_nothing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "train.py")

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(UserError, match="No space left"):
        take(repository)
    assert not list(repository.parent.glob(".*")) and not (repository.parent / "copy").exists()


def plan_of(launch: Launch, directory: Path, *arguments: str, **extra: str) -> dict[str, Any]:
    os.chdir(directory)
    done = launch("plan", "--json", *arguments, **extra)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_paths_of_the_repository_lead_into_the_copy_and_others_stay(launch: Launch, repository: Path) -> None:
    (repository / "sub").mkdir()
    (repository / "sub" / "b.py").write_text("")
    (repository.parent / "else.py").write_text("")
    for path, there in (("b.py", "sub/b.py"), ("../train.py", "train.py"), (f"{repository}/train.py", "train.py")):
        plan = plan_of(launch, repository / "sub", *ON_SLURM, f"task.path={quote(path)}")
        assert plan["entry"][2] == f"{plan['run_dir']}/snapshot/{there}"
        assert plan["workdir"] == f"{plan['run_dir']}/snapshot/sub"
        assert plan["submit_dir"] == str(repository / "sub")
    plan = plan_of(launch, repository, *ON_SLURM[:2], "task.path=../else.py", "cluster=a100x2")
    assert plan["entry"][2] == f"{repository}/../else.py"


def test_a_run_may_be_submitted_from_a_directory_without_files(launch: Launch, repository: Path) -> None:
    (repository / "empty").mkdir()
    os.chdir(repository / "empty")
    assert launch("render", *ON_SLURM[:2], "task.path=../train.py", "cluster=a100x2", "-o", "x.sbatch").returncode == 0
    assert (only_run(repository / "empty") / "snapshot" / "empty").is_dir()


def test_packages_of_the_repository_are_imported_from_the_copy(launch: Launch, repository: Path) -> None:
    plan = plan_of(launch, repository, *ON_SLURM, PYTHONPATH=f"{repository}/src:{ROOT}")
    assert plan["import_paths"] == [f"{plan['run_dir']}/snapshot/src"]


@pytest.mark.train
def test_a_run_on_this_machine_takes_none_unless_it_is_asked_for(launch: Launch, repository: Path) -> None:
    assert not plan_of(launch, repository, *TRAIN)["snapshot"]
    assert not plan_of(launch, repository, *ON_SLURM, "snapshot=off")["snapshot"]
    done = launch(*TRAIN, "snapshot=git")
    assert done.returncode == 0, done.stderr
    run = only_run(repository)
    assert (run / "snapshot" / "train.py").is_file()
    assert json.loads((run / "plan.json").read_text())["workdir"] == str(run / "snapshot")


def test_outside_of_a_repository_there_is_none_and_asking_for_it_is_a_mistake(launch: Launch, workdir: Path) -> None:
    script(workdir, "", "train.py")
    assert not plan_of(launch, workdir, *ON_SLURM)["snapshot"]
    done = launch(*ON_SLURM, "snapshot=git", "dry_run=true")
    assert (done.returncode, "is in no git repository" in done.stderr) == (2, True)


def test_where_git_is_missing_or_refuses_there_is_none_and_it_is_said(launch: Launch, repository: Path) -> None:
    only_python = str(repository.parent / "bin")
    os.mkdir(only_python)
    done = launch("plan", *ON_SLURM, PATH=only_python)
    assert done.returncode == 0
    assert "no snapshot of the code: cannot run git" in done.stderr
    if os.geteuid() == 0:
        os.chown(repository, 12345, 12345)
        done = launch("plan", *ON_SLURM)
        assert done.returncode == 0
        assert "dubious ownership" in done.stderr


def test_the_dry_run_says_so(launch: Launch, repository: Path) -> None:
    assert f"a copy of {repository}" in launch("plan", *ON_SLURM).stdout


def test_provenance_tells_what_the_run_was_started_with(launch: Launch, repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://me:pass@example.org/me/repo.git")
    (repository / "train.py").write_text("print('edited')\n")
    (repository / "new file.py").write_text("")
    secret = (
        "cluster.env.WANDB_API_KEY=hush",
        "task.args=[--hub-token, 'hush']",
        "tracking.mlflow.uri=http://u:hush@x",
    )
    assert launch(*RENDER, *secret).returncode == 0
    text = (only_run(repository) / "provenance.json").read_text()
    facts = json.loads(text)
    assert "hush" not in text and "pass" not in text
    assert facts["command"][:4] == ["python", "-m", "launcher", "render"]
    assert "cluster.env.WANDB_API_KEY=********" in facts["command"]
    tree = facts["git"]
    assert (tree["commit"], tree["branch"]) == (git(repository, "rev-parse", "HEAD"), "main")
    assert tree["remote"] == "https://example.org/me/repo.git"
    assert tree["dirty"] and "+print('edited')" in tree["diff"] and tree["untracked"] == ["new file.py"]
    assert facts["python"] == {"executable": sys.executable, "version": sys.version}
    from importlib.metadata import version

    assert (facts["packages"]["omegaconf"], facts["torch"]) == (version("omegaconf"), version("torch"))
    assert facts["host"] == os.uname().nodename


def test_provenance_of_a_clean_and_of_an_empty_repository(launch: Launch, repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert launch(*RENDER, "runs_dir=../runs").returncode == 0
    tree = json.loads((only_run(repository.parent) / "provenance.json").read_text())["git"]
    assert (tree["dirty"], tree["diff"], tree["untracked"], tree["branch"]) == (False, "", [], None)
    shutil.rmtree(repository / ".git")
    git(repository, "init", "-q", "-b", "fresh")
    assert launch(*RENDER, "runs_dir=../others").returncode == 0
    (run,) = (repository.parent / "others").iterdir()
    tree = json.loads((run / "provenance.json").read_text())["git"]
    assert (tree["commit"], tree["branch"], tree["dirty"]) == (None, "fresh", True)


def test_provenance_names_the_packages_of_the_ranks_interpreter(launch: Launch, repository: Path) -> None:
    other = repository.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    packages = next(other.glob("lib/python*/site-packages"))
    (packages / "My_Package-1.2.dist-info").mkdir()
    assert launch(*RENDER, "cluster.python=../venv/bin/python").returncode == 0
    facts = json.loads((only_run(repository) / "provenance.json").read_text())
    assert facts["packages"] == {"my-package": "1.2"}
    assert facts["torch"] is None


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65  Release Build\n", "580.65"),
        ("", None),
    ],
)
def test_the_driver_is_read_from_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, version: str | None
) -> None:
    (tmp_path / "version").write_text(line)
    monkeypatch.setattr(provenance, "_NVIDIA", tmp_path / "version")
    assert provenance._driver() == version


@pytest.mark.parametrize(
    ("packages", "version"),
    [
        ({"torch": "2.9.1+cu128"}, "12.8"),
        ({"torch": "2.9.1", "nvidia-cuda-runtime-cu12": "12.8.90"}, "12.8.90"),
        ({"torch": "2.13.0+cpu"}, None),
    ],
)
def test_the_cuda_that_torch_was_built_for(packages: dict[str, str], version: str | None) -> None:
    assert provenance._cuda(packages) == version


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("cluster.env.WANDB_API_KEY=hush", "cluster.env.WANDB_API_KEY=********"),
        ("cluster.env={MY_TOKEN: 'hu, sh', A: 1}", "cluster.env={MY_TOKEN: ********, A: 1}"),
        ("task.args=[--password, hush, --lr, 1]", "task.args=[--password, ********, --lr, 1]"),
        ("task.args={secret: hush}", "task.args={secret: ********}"),
        ("tracking.mlflow.uri=https://me:hush@host/x", "tracking.mlflow.uri=https://host/x"),
        ("task.args=[--tokenizer, gpt2]", "task.args=[--tokenizer, gpt2]"),
        ("agent.lr=1e-3", "agent.lr=1e-3"),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(word: str, shown: str) -> None:
    assert mask(word) == shown


def comparable(run: Path) -> dict[str, Any]:
    """The plan of a run, with its own id and directory taken out."""
    return json.loads((run / "plan.json").read_text().replace(run.name, "ID"))


def two_runs(directory: Path) -> tuple[Path, Path]:
    first, second = sorted(runs_in(directory / "runs"), key=lambda run: run.stat().st_ctime)
    return first, second


def test_a_rerun_has_the_plan_of_the_original_whatever_conf_and_code_say_now(launch: Launch, repository: Path) -> None:
    conf = repository.parent / "conf"
    (conf / "cluster").mkdir(parents=True)
    (conf / "cluster" / "lab.yaml").write_text(
        "name: lab\nscheduler: slurm\nnccl: [p2p_off]\ngpus_per_node: 2\nenv: {A: '\\${x}', B: \"q'\\\"\"}\n"
    )
    arguments = (*TRAIN, "cluster=lab", "task.args=['${HOME}', \"${seed}\"]", "name='two\nlines'", "seed=7")
    done = launch("render", "--config-dir", str(conf), *arguments, "-o", "../run.sbatch",
                  PYTHONPATH=f"{repository}:{ROOT}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    original = only_run(repository)
    shutil.rmtree(conf)
    (repository / "train.py").unlink()
    os.chdir(repository.parent)  # from anywhere
    done = launch("rerun", str(original), "cluster.scheduler=local", "dry_run=true")
    assert done.returncode == 0, done.stderr
    assert "with its snapshot" in done.stdout
    done = launch("rerun", original.name, f"runs_dir={repository}/runs", PATH=_with_sbatch(repository.parent))
    assert done.returncode == 0, done.stderr
    first, second = two_runs(repository)
    assert first == original
    assert comparable(second) == comparable(first)
    assert (second / "snapshot" / "train.py").read_text() == "print('as committed')\n"
    assert not (second / "snapshot").is_symlink()


def _with_sbatch(directory: Path) -> str:
    """A PATH on which Slurm's commands are there and say that they took a job."""
    tools = directory / "tools"
    tools.mkdir()
    for name in ("sbatch", "srun", "squeue", "scancel"):
        (tools / name).write_text("#!/bin/sh\necho Submitted batch job 1\n")
        (tools / name).chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


@pytest.mark.train
def test_a_rerun_trains_the_same_with_one_key_changed(launch: Launch, repository: Path) -> None:
    (repository / "train.py").write_text("import sys, os; print('GOT', sys.argv[1:], os.getcwd())\n")
    assert launch(*TRAIN, "snapshot=git", "task.args=[--lr, 1]").returncode == 0
    original = only_run(repository)
    (repository / "train.py").write_text("print('later')\n")
    done = launch("rerun", original.name[:20], "task.args=[--lr, 2]")
    assert done.returncode == 0, done.stderr
    _, second = two_runs(repository)
    assert f"GOT ['--lr', '2'] {second}/snapshot" in done.stdout
    done = launch("rerun", original.name, "--current-code")
    assert done.returncode == 0, done.stderr
    assert "later" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["nix"], "no run 'nix'"),
        ([], "RUN"),
        (["{run}", "cluster=a100x8"], "keeps the choice of cluster"),
        (["{run}", "clustr.nodes=2"], "did you mean cluster"),
        (["{run}", "--current"], "such"),
    ],
)
def test_a_mistake_of_a_rerun_is_one_line(launch: Launch, repository: Path, arguments: list[str], answer: str) -> None:
    assert launch(*RENDER).returncode == 0
    run = only_run(repository)
    if answer == "such":
        shutil.rmtree(run / "snapshot")
        answer = "cannot enter the directory"
        arguments = ["{run}"]
    done = launch("rerun", *(word.format(run=run.name) for word in arguments))
    assert done.returncode == 2
    assert answer in done.stderr
    assert "Traceback" not in done.stderr
    assert len(runs_in(repository / "runs")) == 1


@pytest.mark.slurm
@pytest.mark.train
def test_what_is_edited_while_a_job_waits_changes_nothing(sandbox: Sandbox, repository: Path) -> None:
    (repository / "mine.py").write_text("said = 'as submitted'\n")
    (repository / "train.py").write_text("import mine, os\nprint('SAID', mine.said, open('data/set').read())\n"
                                         "print('FROM', os.environ['LAUNCHER_SUBMIT_DIR'])\n")  # fmt: skip
    done = launch_on(sandbox, repository, *TRAIN, "cluster=sandbox", "cluster.extra_directives.hold=true")
    assert done.returncode == 0, done.stderr
    (repository / "mine.py").write_text("said = 'edited'\n")
    (repository / "train.py").unlink()
    (repository / "data" / "set").write_text("larger")
    run = only_run(repository)
    sandbox.run(["scontrol", "release", job_of(run)], check=True)
    wait_until((run / "result.json").exists, 60)
    assert result_of(run)["outcome"] == "completed"
    log = (run / "attempts/000/rank-0.log").read_text()
    assert "SAID as submitted larger" in log
    assert f"FROM {repository}" in log
    assert not (run / "code" / "launcher").is_symlink()
    assert json.loads((run / "provenance.json").read_text())["slurm"]


@pytest.mark.slurm
@pytest.mark.train
def test_the_runs_of_a_sweep_share_one_snapshot(sandbox: Sandbox, repository: Path) -> None:
    (repository / "train.py").write_text("import sys\nprint('SAID', 'as submitted', sys.argv[1:])\n")
    swept = ("-m", *TRAIN, "cluster=sandbox", "cluster.extra_directives.hold=true")
    done = launch_on(sandbox, repository, *swept, "task.args.x='${HOME}','b c'")
    assert done.returncode == 0, done.stderr
    (repository / "train.py").unlink()
    (sweep,) = runs_in(repository / "runs")
    runs = [path.parent for path in sorted(sweep.glob("*/plan.json"))]
    assert {json.loads((run / "plan.json").read_text())["snapshot"] for run in runs} == {str(sweep / "snapshot")}
    assert all((run / "provenance.json").is_file() and not (run / "snapshot").exists() for run in runs)
    (job,) = {
        record["job_id"] for record in map(json.loads, map(Path.read_text, sweep.glob("batches/*/submission.json")))
    }
    sandbox.run(["scontrol", "release", job], check=True)
    wait_until(lambda: all((run / "result.json").exists() for run in runs), 60)
    said = ["".join((run / "attempts/000/rank-0.log").read_text().split("SAID")[1:]).strip() for run in runs]
    assert said == ["as submitted ['--x', '${HOME}']", "as submitted ['--x', 'b c']"]
