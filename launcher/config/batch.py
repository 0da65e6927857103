"""The effective batch of a run: samples per optimizer step, over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.config.schema import Config
from launcher.config.task_args import value_of, words
from launcher.errors import UserError

PER_DEVICE = "per_device_train_batch_size"
ACCUMULATION = "gradient_accumulation_steps"
"""Names of transformers' TrainingArguments, which TRL's scripts take as options."""

_TRANSFORMERS_PER_DEVICE = 8
_TRANSFORMERS_ACCUMULATION = 1


@dataclass(frozen=True)
class Batch:
    """Its three factors; what is None only the script knows."""

    per_device: int | None
    ranks: int
    accumulation: int | None


def batch_of(config: Config) -> Batch | None:
    """The effective batch where Accelerate is told of it; None under the other libraries.

    Raises:
        UserError: ``task.global_batch_size`` cannot be reached, or the numbers contradict each other.
    """
    goal = config.task.global_batch_size
    if not config.library.uses_accelerate:
        if goal is not None:
            raise UserError("task.global_batch_size needs library=trl or library=accelerate")
        return None
    trl = uses_training_arguments(config)
    per_device = _number(PER_DEVICE, config) or (_TRANSFORMERS_PER_DEVICE if trl else None)
    said = _accumulation(config)
    if goal is None:
        return Batch(per_device, config.cluster.ranks, said or (_TRANSFORMERS_ACCUMULATION if trl else None))
    found = _divide(goal, per_device, config.cluster.ranks)
    if said is not None and said != found:
        raise UserError(f"task.global_batch_size={goal} needs {ACCUMULATION}={found}, and {said} is set: leave it out")
    return Batch(per_device, config.cluster.ranks, found)


def uses_training_arguments(config: Config) -> bool:
    """True for TRL's own scripts, whose options and defaults are known."""
    return (config.task.module or "").startswith("trl.scripts.")


def _accumulation(config: Config) -> int | None:
    """The one number that is set, wherever it is set."""
    ours, theirs = config.library.accelerate.gradient_accumulation_steps, _number(ACCUMULATION, config)
    if ours is not None and theirs is not None and ours != theirs:
        raise UserError(f"library.accelerate.{ACCUMULATION}={ours} and task.args' {ACCUMULATION} {theirs} differ")
    return ours or theirs


def _divide(goal: int, per_device: int | None, ranks: int) -> int:
    if per_device is None:
        raise UserError(f"task.global_batch_size={goal} needs the batch per device: put {PER_DEVICE} in task.args")
    steps, rest = divmod(goal, per_device * ranks)
    if rest:
        product = f"{per_device} per device × {ranks} rank{'s' if ranks > 1 else ''} = {per_device * ranks}"
        fitting = ", ".join(map(str, _fitting(goal, ranks))) or f"none: {ranks} ranks do not divide {goal}"
        raise UserError(
            f"task.global_batch_size={goal} is no multiple of {product}; {PER_DEVICE} that would fit: {fitting}"
        )
    return steps


def _fitting(goal: int, ranks: int) -> Iterator[int]:
    return (size for size in range(1, goal + 1) if goal % (size * ranks) == 0)


def _number(name: str, config: Config) -> int | None:
    text = value_of(name, words(config.task.args))
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"task.args: {name} is '{text}', and must be a whole number from 1")
    return int(text)
