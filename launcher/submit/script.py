"""The run as a script for sbatch, from the templates in ``slurm_templates/``."""

from __future__ import annotations

import shlex
from pathlib import Path

from launcher.plan.plan import Plan
from launcher.slurm.directives import as_header
from launcher.submit.batch_job import batch_job


def templates_dir() -> Path:
    """``slurm_templates/``: beside the package in a clone, inside it in an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "slurm_templates"
    return inside if inside.is_dir() else package.parent / "slurm_templates"


def script(plan: Plan) -> str:
    """The script's text. It starts the same agents as a submission through submitit does."""
    import jinja2

    loader = jinja2.FileSystemLoader(templates_dir())
    environment = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
                                     undefined=jinja2.StrictUndefined)  # fmt: skip
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["join_words"] = shlex.join
    job = batch_job(plan)
    return environment.get_template("job.sbatch").render(plan=plan, job=job, header=as_header(job.directives))
