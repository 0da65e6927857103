"""A reward for GRPO that needs no model."""

from typing import Any


def count_letter_e(completions: list[str], **kwargs: Any) -> list[float]:
    """One point per letter e."""
    return [float(completion.count("e")) for completion in completions]
