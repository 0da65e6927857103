"""Ways to start a plan: Slurm through submitit, or this machine, now."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """``from launcher import submit`` is :func:`launcher.api.submit`, which has this package's name.

    Python makes a package an attribute of its parent as soon as it is imported: only as the same object can the two
    stand there, whichever is asked for first.
    """

    def __call__(self, *words: Any, **options: Any) -> Any:
        from launcher.api import submit

        return submit(*words, **options)


sys.modules[__name__].__class__ = _Room
