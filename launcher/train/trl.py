"""One of TRL's own scripts, as one rank: ``python -m launcher.train.trl -m trl.scripts.sft ARGUMENTS…``.

The script is TRL's, unchanged. Added are the checkpoint to go on from, by its path (TRL's own search takes the newest
one, cut short or not), a stop that all ranks agree on, seals on checkpoints, and records of the progress.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, trainer

from launcher.records import checkpoints
from launcher.train import accelerate, fence
from launcher.train.accelerate_env import uses_gpu
from launcher.train.here import read_plan
from launcher.train.rank import Rank


class Records(TrainerCallback):
    """Tells the launcher how the training goes, and the training when the launcher wants it to stop."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._rank = Rank(args.device.type, args.seed)
        self._rank.__enter__()  # the process group is there already, and the script itself leaves it

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Signals reach the ranks at different moments: they stop after the same step because they agree on it."""
        self._rank.iteration = state.global_step
        if self._rank.should_stop():
            control.should_save = control.should_training_stop = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if "train_runtime" not in kwargs["logs"]:  # the summary at the end: no step of its own
            self._rank.progress(state.global_step, **kwargs["logs"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Every rank has written its part; what has no seal, or does not fit it, is never resumed from."""
        self._rank.barrier()
        if self._rank.rank == 0:
            fence.check()
            path = Path(args.output_dir or "") / f"checkpoint-{state.global_step}"
            try:
                checkpoints.seal_in_place(path, state.global_step, self._rank.world_size)
            except OSError as error:
                print(f"warning: {path.name} was not sealed: {error.strerror}; the one before it stays", flush=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The script saves its model and ends with 0 even when it was stopped: only the steps tell."""
        self._rank.iteration = state.global_step
        self._rank.report("max_steps" if state.global_step >= state.max_steps else "asked to stop")


def main(command: Sequence[str]) -> None:
    """Run the script with what only the node knows added to its arguments."""
    callbacks: list[Any] = trainer.DEFAULT_CALLBACKS
    callbacks.append(Records)
    accelerate.run([*command, *_added(list(command))])


def _added(given: list[str]) -> list[str]:
    cpu = not _option("use_cpu", given) and not uses_gpu(read_plan()["training"]["device"])
    resume = "" if _option("resume_from_checkpoint", given) else newest(given)
    return [*(["--use_cpu", "true"] if cpu else []), *(["--resume_from_checkpoint", resume] if resume else [])]


def newest(given: list[str]) -> str:
    """The path of the checkpoint to go on from, or nothing at a fresh start.

    The agents have chosen one from the run's directory; they know nothing of an output directory elsewhere.
    """
    if chosen := os.environ.get("LAUNCHER_RESUME"):
        return chosen
    found = checkpoints.newest_whole(Path(_option("output_dir", given)))
    return str(found.path) if found else ""


def _option(name: str, given: list[str]) -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", default="")
    return getattr(parser.parse_known_args(given)[0], name)


if __name__ == "__main__":
    main(sys.argv[1:])
