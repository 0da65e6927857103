"""Who is told of the end of a run, from the configuration."""

from __future__ import annotations

from typing import Any

from launcher.config.schema import Notify, NotifyWhen
from launcher.plan.plan import Notices

_MAIL_TYPES = {NotifyWhen.end: "END,FAIL", NotifyWhen.failure: "FAIL"}


def notices_of(settings: Notify) -> Notices | None:
    """What the agent sends; None where it has nothing to send."""
    if settings.webhook is None and not settings.command:
        return None
    return Notices(
        failures_only=settings.when is NotifyWhen.failure,
        webhook=settings.webhook or "",
        style=settings.style.value,
        command=tuple(settings.command),
    )


def mail_directives(settings: Notify) -> dict[str, Any]:
    """What has Slurm send mails. sbatch(1): of an array it sends one for all of it."""
    if settings.mail is None:
        return {}
    return {"mail-user": settings.mail, "mail-type": _MAIL_TYPES[settings.when]}
