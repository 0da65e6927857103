"""Any value of any key arrives as it was written: through Hydra, sbatch, srun and torchrun, in every rank."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.compose import compose, recompose
from launcher.config.literals import quote
from launcher.errors import UserError
from launcher.plan.build import Here, build
from launcher.plan.limits import require_possible
from tests.conftest import Launch, only_run, result_of, runs_in, script
from tests.sandbox import Sandbox
from tests.test_local import wait_until
from tests.test_slurm import SCRIPT, job_of, launch_on, slurm_state

SIGNS = "\\'\"${}?%~`!#&;|<>()[]*@:=,+-. \t\n\r\x01\x7fé漢😀"
VALUES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30) | st.text(
    st.sampled_from(SIGNS), max_size=12
)
NASTY = [
    "", " ", "'", '"', "\\", "\\'", "\\\\", "'\\", "a\\", "\\\n", "a,b", "mlx5_0:1,mlx5_1:1", "x=y", "$(id)", "`id`",
    "%", "%j", "%%", "${HOME}", "$HOME", "\\${HOME}", "${seed}", "${", "$$", "$$$", "$local_rank", "${local_rank}", "~",
    "~/x", "\n", "a\nb\n", "\r\n", "-", "--", "--epochs", "-x=1", "[1, 2]", "{a: 1}", "null", "true", "1e-3", "007",
    "1:30:00", "???", "é漢😀", "\u2028", "\x85", "\ufeff", "*", "#x", "!x", "&", "yes", "off",
]  # fmt: skip


def composed(values: Sequence[str]) -> list[str]:
    """Overrides that put the values into the ranks' arguments, their configuration and their environment."""
    listed = ",".join(map(quote, values))
    pairs = ",".join(f"v{number}: {quote(value)}" for number, value in enumerate(values))
    every_other = [(number, quote(value)) for number, value in enumerate(values)]
    return [
        f"task.args=[{listed}]",
        f"task.env_args={{{pairs}}}",
        *(f"library.env.LIBRARY_{number}={value}" for number, value in every_other[::2]),
        *(f"cluster.env.CLUSTER_{number}={value}" for number, value in every_other[1::2]),
    ]


def environment_of(values: Sequence[str]) -> dict[str, str]:
    return {f"{('LIBRARY', 'CLUSTER')[number % 2]}_{number}": value for number, value in enumerate(values)}


@given(st.lists(VALUES, min_size=10, max_size=30))
@example(NASTY)
@settings(max_examples=4)  # each composes twice
def test_any_value_survives_hydra_and_the_written_configuration(values: list[str]) -> None:
    import tempfile

    first = compose(composed(values))
    assert list(first.config.task.args) == values
    assert list(first.config.task.env_args.values()) == values
    assert environment_of(values).items() <= {**first.config.library.env, **first.config.cluster.env}.items()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "config.yaml"
        file.write_text(first.yaml)
        assert recompose(file, []) == first


SHOW = """\
import json, os, sys
with open(f"rank-{os.environ['RANK']}.json", "w") as file:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ)}, file)
"""


def _show(cluster: Sandbox, workdir: Path, *overrides: str) -> Path:
    """Have four ranks on two nodes write down what reached them; returns the run's directory."""
    script(workdir, SHOW)
    done = launch_on(cluster, workdir, *SCRIPT, "cluster.nodes=2", "wait=true", *overrides)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return only_run(workdir)


@pytest.mark.slurm
@pytest.mark.train
@given(st.lists(VALUES, min_size=150, max_size=200))
@example(NASTY)
@settings(
    max_examples=3, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
def test_any_value_reaches_every_rank_of_a_job(sandbox: Sandbox, tmp_path: Path, values: list[str]) -> None:
    workdir = tmp_path / str(len(os.listdir(tmp_path)))
    workdir.mkdir()
    run = _show(sandbox, workdir, *composed(values))
    for rank in range(4):
        shown = json.loads((workdir / f"rank-{rank}.json").read_text())
        assert shown["argv"] == values
        assert {name: shown["env"].get(name) for name in environment_of(values)} == environment_of(values)
    assert list(json.loads((run / "plan.json").read_text())["training"]["task"]["env_args"].values()) == values
    written: Any = OmegaConf.to_container(OmegaConf.load(run / "config.yaml"), resolve=True)
    assert written["task"]["args"] == list(written["task"]["env_args"].values()) == values


@pytest.mark.slurm
@pytest.mark.train
def test_a_value_of_100_kb_reaches_every_rank(sandbox: Sandbox, workdir: Path) -> None:
    value = "${c}" + "a'b\\ é\n" * 12_000
    run = _show(sandbox, workdir, f"task.args=[{quote(value)}]", f"cluster.env.LONG={quote(value)}",
                f"task.env_args.long={quote(value)}")  # fmt: skip
    for rank in range(4):
        shown = json.loads((workdir / f"rank-{rank}.json").read_text())
        assert (shown["argv"], shown["env"]["LONG"]) == ([value], value)
    assert json.loads((run / "plan.json").read_text())["training"]["task"]["env_args"] == {"long": value}


HERE = Here("the-run", Path("/runs"), Path("/work"), "/venv/bin/python")


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("task.args=['{}']".format("x" * 131_072), "131072 bytes"),
        ("cluster.env.X='{}'".format("x" * 131_070), "131072 bytes"),
        ("+cluster.env={my-var: 1}", "'my-var' is no name"),
    ],
)
def test_what_linux_cannot_carry_is_said_in_one_line(override: str, answer: str) -> None:
    with pytest.raises(UserError) as caught:
        config = compose(["task=script", "library=torchrun", "task.module=m", override]).config
        require_possible(build(config, HERE))
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_nul_of_a_users_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text('name: mine\nenv: {X: "a\\0b"}\n')
    with pytest.raises(UserError, match=r"X \(cluster mine\) holds a NUL"):
        require_possible(build(compose(["cluster=mine"], [str(tmp_path)]).config, HERE))


def test_what_is_no_text_is_refused(launch: Launch) -> None:
    done = launch("name='\udc80'", "dry_run=true")
    assert (done.returncode, done.stderr.splitlines()) == (2, ["launcher: name: the value is not valid UTF-8"])


def test_a_missing_interpolation_says_how_to_keep_it() -> None:
    assert compose(["name='${HOME}'"]).config.name == "${HOME}"
    assert compose(['name="run-${seed}"']).config.name == "run-1"
    with pytest.raises(UserError, match="in single quotes"):
        compose(['name="${HOME}"'])


NAMES = ["two\nlines #SBATCH --x", "a/b/../c", "x" * 300, "-lead --nodes=9", 'é漢 "q" %j', "\x1b[2J"]


@pytest.mark.slurm
@pytest.mark.train
def test_a_name_that_slurm_cannot_carry_stands_in_the_records(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    for name in NAMES:
        done = launch_on(sandbox, workdir, *SCRIPT, f"name={quote(name)}", "cluster.setup=[exit 0]")
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 4
    runs = sorted(runs_in(workdir / "runs"), key=lambda run: run.stat().st_mtime)
    assert {json.loads((run / "plan.json").read_text())["name"] for run in runs} == set(NAMES)
    assert {OmegaConf.select(OmegaConf.load(run / "config.yaml"), "name") for run in runs} == set(NAMES)
    jobs = [sandbox.run(["scontrol", "show", "job", "-o", job_of(run)]).stdout for run in runs]
    assert all(re.search(r" NumNodes=1(-1)? ", job) and "JobName=" in job for job in jobs)  # 1-1 while it is pending


COMMENT = "it's a \\b 'c\\' \\\\ \"q\" #x $(id) `id` %j é"


@pytest.mark.slurm
@pytest.mark.train
def test_a_directive_reaches_slurm_as_it_was_written(sandbox: Sandbox, workdir: Path) -> None:
    script(workdir, "")
    given = (*SCRIPT, f"cluster.extra_directives.comment={quote(COMMENT)}", "cluster.extra_directives.hold=true")
    assert launch_on(sandbox, workdir, *given).returncode == 0
    assert launch_on(sandbox, workdir, "render", *given, "-o", "x.sbatch", "runs_dir=others").returncode == 0
    rendered = sandbox.run(["sbatch", "--parsable", "x.sbatch"], cwd=workdir, check=True).stdout.strip()
    for job_id in (job_of(only_run(workdir)), rendered):
        assert f" Comment={COMMENT} " in sandbox.run(["scontrol", "show", "job", "-o", job_id]).stdout
        sandbox.run(["scancel", job_id], check=True)


def test_a_task_with_an_odd_name_gets_a_run_id_that_is_one_directory(launch: Launch, workdir: Path) -> None:
    script(workdir, "")
    done = launch("render", *SCRIPT, "cluster=a100x2", "task.name='../ä b\n/%c'", "-o", "x.sbatch")
    assert done.returncode == 0, done.stderr
    assert only_run(workdir).name.split("-")[2] == ".._b_c"


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leaves_its_comment_in_a_rendered_script(launch: Launch, workdir: Path, name: str) -> None:
    script(workdir, "")
    assert launch("render", *SCRIPT, f"name={quote(name)}", "-o", "x.sbatch").returncode == 0
    head = (workdir / "x.sbatch").read_text().splitlines()[:10]
    assert all(line.startswith("#") for line in head)
    assert not any(line.startswith("#SBATCH --x") for line in head)


ODD = "a\\b %j 'q' \"d\" é%%t #x"


@pytest.mark.slurm
@pytest.mark.train
@pytest.mark.parametrize("name", [ODD, ODD.replace("\\", "")])
def test_the_runs_may_be_in_a_directory_of_any_name(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    workdir = tmp_path / name
    workdir.mkdir()
    script(workdir, "print('hello from the rank')")
    (workdir / "given").write_text("echo from setup $PWD\n")
    arguments = (*SCRIPT, f"runs_dir={quote(str(workdir / 'my runs'))}", "cluster.setup=['. ./given']")
    done = launch_on(sandbox, workdir, *arguments, "wait=true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello from the rank" in done.stdout
    (run,) = runs_in(workdir / "my runs")
    assert result_of(run)["outcome"] == "completed"
    assert "hello" in launch_on(sandbox, workdir, "logs", run.name, f"runs_dir={workdir / 'my runs'}").stdout
    (status,) = json.loads(launch_on(sandbox, workdir, "status", "--json", f"runs_dir={workdir / 'my runs'}").stdout)
    assert (status["state"], status["where"]) == ("completed", job_of(run))
    (batch,) = run.glob("slurm/*batch.out")
    assert f"from setup {workdir}" in batch.read_text()
    assert len(list(run.glob("slurm/*_0_log.out"))) == 1
    assert (run / "slurm/job.sbatch").is_file()
    assert launch_on(sandbox, workdir, "render", *arguments, "-o", "x.sbatch").returncode == 0
    submitted = sandbox.run(["sbatch", "--parsable", str(workdir / "x.sbatch")], cwd=tmp_path, check=True)
    wait_until(lambda: slurm_state(sandbox, submitted.stdout.strip()) == "COMPLETED")


def test_a_colon_in_the_path_of_the_runs_is_refused(launch: Launch, workdir: Path) -> None:
    done = launch("runs_dir='a:b'", "dry_run=true")
    assert done.returncode == 2
    assert "holds a colon" in done.stderr
