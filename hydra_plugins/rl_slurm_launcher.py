"""How Hydra hands the runs of a sweep (``-m``) to the launcher. Hydra finds plugins in this place only.

Composing, submitting and waiting are the business of `launcher.cli.sweep`; it comes here as Hydra's task function,
which otherwise would be called once per run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ArrayLauncher(Launcher):
    """Launches all runs that a sweeper asks for at once."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take the function that really launches: overrides of each run, number of the first → objectives."""
        self._launch: Any = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch the runs; a failed one gives back its error in place of the objective."""
        objectives = self._launch(job_overrides, initial_job_idx)
        return [
            JobReturn(
                overrides=overrides,
                status=JobStatus.FAILED if isinstance(objective, Exception) else JobStatus.COMPLETED,
                _return_value=objective,
            )
            for overrides, objective in zip(job_overrides, objectives)
        ]


class GridSweeper(BasicSweeper):
    """Hydra's basic sweeper, less its composing of every run from nothing, one by one, before the first starts."""

    def sweep(self, arguments: list[str]) -> Any:
        """Launch every combination of the arguments' values."""
        assert self.hydra_context is not None and self.launcher is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        (jobs,) = self.split_arguments(parser.parse_overrides(arguments), None)
        return self.launcher.launch(jobs, initial_job_idx=0)


def _target(plugin: type) -> dict[str, str]:
    return {"_target_": f"hydra_plugins.rl_slurm_launcher.{plugin.__name__}"}


_STORE = ConfigStore.instance()
_STORE.store("rl_slurm", _target(ArrayLauncher), group="hydra/launcher", provider="rl_slurm")
_STORE.store("grid", {**_target(GridSweeper), "max_batch_size": None}, group="hydra/sweeper", provider="rl_slurm")
