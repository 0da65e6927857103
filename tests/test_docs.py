"""The documentation: its links lead somewhere, its commands are understood, its reference is complete, it builds."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts import reference
from tests.conftest import PATIENCE, ROOT, Launch, environment, launcher_command
from tests.sandbox import Sandbox
from tests.test_local import metrics_of, wait_until
from tests.test_slurm import in_cluster, job_of
from tests.warm import Warm

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]\n]+\]\((?!\w+:)(?P<file>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
COMMAND = re.compile(r"^(?: {4,}|\$ )?(?:\$ )?python -m launcher (?P<words>.+)$")


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        target = (page.parent / link["file"]).resolve() if link["file"] else page
        assert target.exists(), link.group()
        assert not link["anchor"] or link["anchor"] in headings(target), link.group()


def test_every_page_can_be_reached_from_the_first() -> None:
    listed = (ROOT / "docs/index.md").read_text().split()
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= set(listed)


def test_the_reference_has_every_key_with_its_meaning_and_is_up_to_date() -> None:
    assert not [name for name, _, _, words in reference.all_keys() if not words]
    assert reference.main(["--check"]) == 0, "python scripts/reference.py writes it anew"


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cluster.spare_nodes" in (tmp_path / "configuration.html").read_text()


def commands() -> Iterator[str]:
    """What follows `python -m launcher` on the lines of code of all pages, without what stands for something else."""
    for page in PAGES:
        for line in page.read_text().splitlines():
            found = COMMAND.match(line)
            if found and not re.search(r"…|\.\.\.|<|\\$| && |^VERB", found["words"]):
                yield re.sub(r"\s+(?:# |→ |\(|   ).*", "", found["words"]).strip()


COMMANDS = sorted(set(commands()))
STARTS = [one for one in COMMANDS if re.match(r"-|\w+(\.\w+)*=|'", one) or one.startswith(("plan ", "render "))]
LAB = "name: lab\nscheduler: slurm\npartition: gpu\naccount: robots\ngpus_per_node: 4\ngpu_type: l40s\ntime: 60\n"


def test_there_are_commands_to_look_at() -> None:
    assert len(STARTS) > 20 and len(COMMANDS) - len(STARTS) > 20


@pytest.mark.parametrize("command", STARTS)
def test_every_start_in_the_documentation_is_understood(launch: Launch, workdir: Path, command: str) -> None:
    (workdir / "my_conf/cluster").mkdir(parents=True)
    (workdir / "my_conf/cluster/lab.yaml").write_text(LAB)
    (workdir / "examples").symlink_to(ROOT / "examples")
    (workdir / "train.py").write_text("import torch\n")
    (workdir / "fsdp.yaml").write_text("distributed_type: FSDP\n")
    words = shlex.split(command)
    ours = ["dry_run=true"] if not words[0].isalpha() else []
    done = launch(*words, *ours, LAUNCHER_CONFIG_DIR=str(workdir / "my_conf"))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def told(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The help of a verb, asked for once."""

    @functools.cache
    def told(*verb: str) -> str:
        done = warm.run((*verb, "--help"), tmp_path_factory.mktemp("help"), environment(), 60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return told


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in STARTS])
def test_every_verb_and_option_in_the_documentation_exists(told: Callable[..., str], command: str) -> None:
    verb, *rest = shlex.split(command)
    sub = [rest[0]] if verb in ("nccl", "bench") and rest else []
    text = told(verb, *sub)
    for option in (word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), f"{option} in {command}"


# the tutorial, on the cluster that it uses

STEP = re.compile(r"<!-- (?P<kind>run|file)(?:: (?P<what>\S+))? -->\n```\w+\n(?P<text>.*?)```", re.S)


@pytest.mark.slurm
@pytest.mark.train
def test_the_tutorial_works_word_for_word(sandbox: Sandbox, workdir: Path) -> None:
    """RUN stands for the newest run; before the requeue the reader waits until some iterations are shown."""
    for step in STEP.finditer((ROOT / "docs/tutorial.md").read_text()):
        if step["kind"] == "file":
            (workdir / step["what"]).write_text(step["text"])
            continue
        for line in step["text"].splitlines():
            if step["what"] == "requeue" and line.startswith("$ scontrol"):
                wait_until(
                    lambda: (newest(workdir) / "metrics.jsonl").exists() and len(metrics_of(newest(workdir))) > 5
                )
            assert type_in(sandbox, workdir, line) == (int(step["what"]) if (step["what"] or "").isdigit() else 0), line
    requeued, *_ = (run for run in runs_of(workdir) if (run / "attempts/001").exists())
    assert [one["iteration"] for one in metrics_of(requeued)] == list(range(1, 61))
    assert (workdir / "report.html").stat().st_size > 100_000
    assert len(list(workdir.glob("runs/*/*/result.json"))) == 4  # of the sweep


def type_in(sandbox: Sandbox, workdir: Path, line: str) -> int:
    """The exit code of a line of the tutorial."""
    words = shlex.split(line.removeprefix("$ "))
    there = runs_of(workdir)
    names = {"RUN": there[-1].name, "JOB": job_of(there[-1])} if there else {}
    words = [names.get(word, word) for word in words]
    command = launcher_command(*words[3:]) if words[:3] == ["python", "-m", "launcher"] else words
    return sandbox.run(command, cwd=workdir, env=in_cluster(sandbox), timeout=PATIENCE * 200).returncode


def runs_of(workdir: Path) -> list[Path]:
    """The oldest first."""
    return sorted(plan.parent for plan in workdir.glob("runs/*/plan.json"))


def newest(workdir: Path) -> Path:
    return runs_of(workdir)[-1]
