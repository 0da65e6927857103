"""How a benchmark scales, as a picture for a paper or a page: PNG and SVG, drawn by matplotlib where that is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.records.files import Record
from launcher.records.scaling import caption_of, title_of

_COLOURS = {"stepping": "#4e79d9", "learning": "#2fb5a9", "synchronising": "#e8743b", "other": "#b8bcc4"}
_LINE, _IDEAL, _CAPTION = "#4e79d9", "#9a9ea8", "#6b7280"


def draw(found: Record, directory: Path) -> list[Path]:
    """Write ``scaling.png`` and ``scaling.svg``, with a caption that says where it comes from; returns their paths.

    Raises:
        ModuleNotFoundError: there is no matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(point["scaling"] for point in found["points"]))
    figure: Any = Figure(figsize=(11, 3.1 * len(kinds) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title_of(found["asked"]), fontsize=11)
    figure.supxlabel(caption_of(found), fontsize=7, color=_CAPTION, wrap=True)
    rows = figure.subplots(len(kinds), 3, squeeze=False)
    for kind, (throughput, efficiency, parts) in zip(kinds, rows):
        points = [one for one in found["points"] if one["scaling"] == kind and one["fps"] is not None]
        if points:
            _throughput(throughput, kind, points)
            _efficiency(efficiency, points)
            _parts(parts, points)
    paths = [directory / f"scaling.{ending}" for ending in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def _throughput(axes: Any, kind: str, points: Sequence[Record]) -> None:
    ranks, medians = _ranks(axes, points), [point["fps"]["median"] for point in points]
    spread = [
        [point["fps"]["median"] - point["fps"]["min"] for point in points],
        [point["fps"]["max"] - point["fps"]["median"] for point in points],
    ]
    first = points[0]
    ideal = [first["fps"]["median"] * one["world_size"] / first["world_size"] for one in points]
    axes.plot(ranks, ideal, "--", color=_IDEAL, label="in proportion", linewidth=1)
    axes.errorbar(ranks, medians, spread, color=_LINE, marker="o", markersize=4, capsize=3, label="measured")
    axes.set_ylabel("frames/s")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    each = first["num_envs_per_rank"]
    total = each * first["world_size"]
    axes.set_title(f"weak: {each} environments a rank" if kind == "weak" else f"strong: {total} environments in all",
                   fontsize=10)  # fmt: skip
    axes.legend(fontsize=8, frameon=False)


def _efficiency(axes: Any, points: Sequence[Record]) -> None:
    shares = [100 * point["efficiency"] for point in points]
    axes.plot(_ranks(axes, points), shares, color=_LINE, marker="o", markersize=4)
    axes.axhline(100, color=_IDEAL, linestyle="--", linewidth=1)
    axes.set_ylabel("%")
    axes.set_ylim(0, max(110, 1.05 * max(shares)))
    axes.set_title("efficiency", fontsize=10)


def _parts(axes: Any, points: Sequence[Record]) -> None:
    """Stacked bars, one for each number of ranks."""
    labels = [str(point["world_size"]) for point in points]
    below = [0.0] * len(points)
    for name, colour in _COLOURS.items():
        seconds = [point["parts_s"].get(name, 0.0) for point in points]
        if any(seconds):
            axes.bar(labels, seconds, bottom=below, color=colour, width=0.6, label=name)
            below = [low + more for low, more in zip(below, seconds)]
    axes.set_ylabel("s")
    axes.set_xlabel("ranks")
    axes.set_title("an iteration of rank 0", fontsize=10)
    if any(below):
        axes.set_ylim(0, 1.45 * max(below))
        axes.legend(fontsize=8, frameon=False, ncols=2, loc="upper left")


def _ranks(axes: Any, points: Sequence[Record]) -> list[int]:
    """The axis of the ranks, with a tick for each number that was measured."""
    ranks = [point["world_size"] for point in points]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(one) for one in ranks])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.grid(alpha=0.25)
    return ranks
