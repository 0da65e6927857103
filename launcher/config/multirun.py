"""A sweep as Hydra's sweepers see it: which runs there are is theirs to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode, TaskFunction

from launcher.config.compose import complaining, composing, search_path, spelled_out
from launcher.config.literals import quote

Launch = Callable[[Sequence[Sequence[str]], int], Sequence[Any]]
"""Given the overrides of some runs and the number of the first: their objectives, or the error of one that failed."""

_OURS = ("hydra/launcher=rl_slurm", "hydra/sweeper=grid")


def multirun(overrides: Sequence[str], config_dirs: Sequence[str], sweep_dir: str, launch: Launch) -> None:
    """Have the sweeper that the overrides name launch its runs.

    The sweeper's own settings are composed without the runs' overrides: those need not fit the default task.

    Raises:
        UserError: the sweeper, or a value of it, does not exist.
    """
    own = [word for word in overrides if _is_hydras(word)]
    runs = [spelled_out(word) for word in overrides if not _is_hydras(word)]
    chosen = {word.partition("=")[0] for word in own}
    defaults = [word for word in _OURS if word.partition("=")[0] not in chosen]
    settings = [*defaults, search_path(config_dirs), f"hydra.sweep.dir={quote(sweep_dir)}", *own]
    with composing(), complaining():
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        config = hydra.compose_config("config", settings, run_mode=RunMode.MULTIRUN, with_log_configuration=False)
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())
        sweeper = Plugins.instance().instantiate_sweeper(
            config=config, hydra_context=context, task_function=cast(TaskFunction, launch)
        )
        sweeper.sweep(arguments=runs)


def wants_objectives(overrides: Sequence[str]) -> bool:
    """True for a sweeper that chooses the next runs by what the last ones have reached."""
    chosen = [word.partition("=")[2] for word in overrides if word.startswith("hydra/sweeper=")]
    return bool(chosen) and chosen[-1] not in ("grid", "basic")


def _is_hydras(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))
