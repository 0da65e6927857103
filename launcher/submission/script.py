"""The run as a script, from the templates in ``slurm_templates/`` or from one of the user's own."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from launcher.errors import UserError
from launcher.plan.plan import Plan
from launcher.slurm.directives import as_header
from launcher.submission.batch_job import BatchJob

JOB, NODE = "job.sbatch", "node.sh"
"""Our own templates: a job for sbatch, and the command of a host without a scheduler."""


def templates_dir() -> Path:
    """``slurm_templates/``: beside the package in a clone, inside it in an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "slurm_templates"
    return inside if inside.is_dir() else package.parent / "slurm_templates"


def script(plan: Plan, job: BatchJob, name: str = JOB) -> str:
    """The text of a script from one of our templates. It starts the same agents as submitit does."""
    return _render(plan, job, [templates_dir()], name)


def script_from(plan: Plan, job: BatchJob, template: Path) -> str:
    """The text of a script from a user's template, which can include what is beside it and all of ours.

    Raises:
        UserError: it cannot be read, or is no template.
    """
    import jinja2

    try:
        return _render(plan, job, [template.parent, templates_dir()], template.name)
    except jinja2.TemplateNotFound as error:
        raise UserError(f"--template {template}: there is no file '{error.name}'") from error
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"--template {error.filename}, line {error.lineno}: {error.message}") from error
    except (jinja2.TemplateError, TypeError, ValueError, OSError) as error:
        raise UserError(f"--template {template}: {error}") from error


def _render(plan: Plan, job: BatchJob, directories: Iterable[Path], name: str) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(list(directories)), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(quote=lambda value: shlex.quote(str(value)), words=shlex.join, comment=_comment)
    return environment.get_template(name).render(plan=plan, job=job, header=as_header(job.directives))


def _comment(value: object) -> str:
    """Text that stays in its comment: a line break in a path would begin a command."""
    return "".join(character if character.isprintable() else "?" for character in str(value))
