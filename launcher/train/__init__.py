"""What runs in each rank. The only room that may import torch, and nothing of the launcher imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.train.rank import Rank as Rank

__all__ = ["Rank"]


def __getattr__(name: str) -> Any:
    """Import torch, through `Rank`, when it is asked for and not before: torchrun starts from this package too."""
    if name == "Rank":
        from launcher.train.rank import Rank

        return Rank
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
