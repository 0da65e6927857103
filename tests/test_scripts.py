"""Scripts from templates: valid and clean whatever a profile or a path holds, and open to templates of the user's."""

import dataclasses
import functools
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.compose import compose
from launcher.config.literals import quote
from launcher.config.schema import Cluster, Scheduler
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.plan.build import Here, build
from launcher.plan.plan import Plan
from launcher.submission.batch_job import batch_job
from launcher.submission.script import NODE, script, script_from
from tests.conftest import ROOT, Launch, environment, launcher_command, only_run, runs_in

PROFILES = sorted(path.stem for path in (ROOT / "conf" / "cluster").glob("*.yaml"))
NASTY = Path('/it\'s a $HOME; "dir" `x` é 100%')
SETUP = [
    "# a comment alone",
    "source ~/venv/bin/activate",
    "export A=\"b c\" B='$x'; cd $A",
    "for i in 1 2; do",
    "  echo $i",
    "done",
]
ANYTHING = [
    f"name={quote(NASTY.name)}",
    f"cluster.setup=[{','.join(map(quote, SETUP))}]",
    "cluster.modules=[cuda/12.4]",
    f"cluster.env.X={quote(str(NASTY))}",
    f"cluster.srun_args=[{quote('--comment=' + NASTY.name)}]",
]


@functools.cache
def plan_of(*overrides: str) -> Plan:
    config = compose(overrides).config
    validate(config)
    return build(config, Here("the-run", NASTY / "runs", NASTY, f"{NASTY}/bin/python"))


A_PLAN = plan_of("cluster=a100x2")


def text_of(plan: Plan, *name: str) -> str:
    return script(plan, batch_job(plan), *name)


def text_from(plan: Plan, template: Path) -> str:
    return script_from(plan, batch_job(plan), template)


def check(text: str) -> None:
    """No complaint of bash or of shellcheck, not even about style."""
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    if not shutil.which("shellcheck"):
        pytest.skip("there is no shellcheck here: python -m tests.sandbox install")
    done = subprocess.run(["shellcheck", "-"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + text


def by_hand(profile: str) -> list[str]:
    return [f"cluster={profile}", "cluster.scheduler=none", "cluster.hosts=gpu[1-2]"]


@functools.cache
def cluster_of(profile: str) -> Cluster:
    return compose([f"cluster={profile}"]).config.cluster


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("besides", [[], ANYTHING])
def test_the_scripts_of_every_profile_are_clean(profile: str, besides: list[str]) -> None:
    cluster = cluster_of(profile)
    if cluster.scheduler is Scheduler.slurm:
        check(text_of(plan_of(f"cluster={profile}", *besides)))
    if cluster.container.runtime is None or cluster.container.runtime.value != "pyxis":
        check(text_of(plan_of(*by_hand(profile), *besides), NODE))


def test_a_line_break_in_a_path_does_not_begin_a_command() -> None:
    here = Here("the-run", Path("/a\nrm -rf b/runs"), Path("/a\nrm -rf b"), "/bin/python")
    text = text_of(build(compose(by_hand("a100x2")).config, here), NODE)
    check(text)
    assert "# All that the run does is decided in /a?rm -rf b/runs/the-run/plan.json" in text


def test_a_directory_that_an_sbatch_line_cannot_hold_is_refused(workdir: Path) -> None:
    (workdir / "a\nb").mkdir()
    command = launcher_command("render", "cluster=a100x2", "-o", "x.sbatch")
    done = subprocess.run(command, cwd=workdir / "a\nb", env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "line break" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list((workdir / "a\nb").iterdir())


def test_no_value_of_the_ranks_environment_stands_in_a_script() -> None:
    besides = "cluster.env.WANDB_API_KEY=hush"
    for text in (text_of(plan_of("cluster=a100x2", besides)), text_of(plan_of(*by_hand("a100x2"), besides), NODE)):
        assert "hush" not in text and "WANDB_API_KEY" not in text


ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0/"), min_size=1, max_size=12)
INSTEAD_OF_SLURM = r"""
cd() { printf '%s\0' "$1"; }
srun() { shift; printf '%s\0' "$@"; }
"""


@given(ANY_TEXT, ANY_TEXT.filter(str.isprintable).map("d{}".format), st.lists(ANY_TEXT, max_size=3))  # "/." is "/"
@settings(max_examples=15)  # each starts a shell
def test_any_text_in_a_plan_reaches_srun_as_the_words_that_are_meant(name: str, place: str, words: list[str]) -> None:
    plan = dataclasses.replace(
        A_PLAN, name=name, submit_dir=f"/{place}", run_dir=f"/{place}/run", srun_args=tuple(words), setup=(),
        directives={},
    )  # fmt: skip
    text = (INSTEAD_OF_SLURM + text_of(plan)).encode()
    done = subprocess.run(["bash"], input=text, capture_output=True, check=True)
    job = batch_job(plan)
    assert done.stdout.decode().split("\0")[:-1] == [f"/{place}", *job.srun_args, *job.agent]


OWN = """\
#!/bin/bash
{% include "partials/header.sbatch" %}
#SBATCH --comment=mine
# shellcheck disable=SC2016
echo {{ plan.name | quote }} on {{ plan.resources.nodes }} nodes
{% include "partials/environment.sh" %}
{% include "beside it.sh" %}
{% include "partials/container.sh" %}
srun {{ job.srun_args | words }} {{ job.agent | words }}
"""


def test_a_users_template_includes_our_parts_and_what_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "my.sbatch").write_text(OWN)
    (tmp_path / "beside it.sh").write_text("echo beside\n")
    text = text_from(plan_of("cluster=a100x2", "cluster.nodes=3", *ANYTHING), tmp_path / "my.sbatch")
    check(text)
    for line in ("#SBATCH --nodes=3", "#SBATCH --comment=mine", "echo beside", "on 3 nodes", "source ~/venv"):
        assert line in text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("{% include 'partials/heeder.sbatch' %}", "no file 'partials/heeder.sbatch'"),
        ("\n{% if %}", "line 2"),
        ("{{ plan.nmae }}", "nmae"),
        ("{{ 3 | words }}", "my.sbatch"),
        (None, "no file 'my.sbatch'"),
    ],
)
def test_a_mistake_in_a_template_is_told_in_one_line(tmp_path: Path, text: str | None, answer: str) -> None:
    if text is not None:
        (tmp_path / "my.sbatch").write_text(text)
    with pytest.raises(UserError) as caught:
        text_from(plan_of("cluster=a100x2"), tmp_path / "my.sbatch")
    assert answer in str(caught.value) and "\n" not in str(caught.value)


def test_a_template_is_named_on_the_command_line_and_a_broken_one_leaves_nothing(launch: Launch, workdir: Path) -> None:
    (workdir / "my own.sbatch").write_text("#!/bin/sh\necho {{ plan.run_id }}\n")
    arguments = ("render", "cluster=a100x2", "--template", "my own.sbatch", "-o", "run.sbatch")
    assert launch(*arguments).returncode == 0
    assert (workdir / "run.sbatch").read_text() == f"#!/bin/sh\necho {only_run(workdir).name}\n"
    (workdir / "my own.sbatch").write_text("{{ nix }}")
    done = launch(*arguments)
    assert done.returncode == 2
    assert "'nix' is undefined" in done.stderr
    assert len(runs_in(workdir / "runs")) == 1


def test_a_sweep_is_rendered_as_one_array(launch: Launch, workdir: Path) -> None:
    done = launch("render", "-m", "task=cartpole", "seed=1,2,3", "cluster=a100x2", "sweep.parallel=2", "-o", "x.sbatch")
    assert done.returncode == 0, done.stderr
    text = (workdir / "x.sbatch").read_text()
    check(text)
    assert "#SBATCH --array=0-2%2" in text and "An array: index N runs" in text
    (sweep,) = runs_in(workdir / "runs")
    assert f"{sweep.name}" in done.stdout and len(list(sweep.glob("*/plan.json"))) == 3


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("seed=1,2", "cluster.time=30,60", "cluster=a100x2", "-o", "x.sbatch"), "these runs are 2 arrays"),
        (("seed=1,2", "-o", "x.sbatch"), "choose a cluster"),
        (("seed=1,2", "cluster=a100x2"), "-o run.sbatch"),
        (("hydra/sweeper=optuna", "seed=1,2", "cluster=a100x2", "-o", "x.sbatch"), "has to start them, with -m"),
    ],
)
def test_a_sweep_that_is_no_script_leaves_nothing(
    launch: Launch, workdir: Path, words: tuple[str, ...], answer: str
) -> None:
    done = launch("render", "-m", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert answer in done.stderr and not list((workdir / "runs").glob("*"))
