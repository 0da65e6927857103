"""What a page says of how a benchmark scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.records.files import Record
from launcher.records.scaling import WEAK, caption_of
from launcher.report.page import QUIET, WARN, Block, Cell, Chart, Grid, Section, Words, size_for
from launcher.report.parts import ITERATION, parts_chart
from launcher.report.thin import rounded

_LOGARITHMIC = 10
"""From so many times the fewest ranks on, both axes are logarithmic: the small numbers would lie on each other."""
_EXPLAINED = (
    "Frames/s is the median of the repetitions, with their range. The efficiency is that median against the one of the"
    " fewest ranks, times as many. The parts of an iteration are rank 0's."
)


def scaling_tiles(found: Record) -> Iterator[tuple[str, str, str]]:
    """The few numbers that matter most, as rows of :class:`Tiles`."""
    if measured := _measured(found["points"]):
        best = max(measured, key=lambda point: point["fps"]["median"])
        kind = f", {best['scaling']} scaling" if best["world_size"] > 1 else ""
        yield "highest frames/s", f"{best['fps']['median']:,.0f}", f"{_ranks(best)}{kind}"
    for kind, (first, *more) in _by_kind(found):
        if more:
            against = f"{_ranks(more[-1])} against {first['world_size']}"
            yield f"efficiency, {kind} scaling", f"{more[-1]['efficiency']:.0%}", against


def scaling_findings(found: Record) -> list[Block]:
    """The sentences that there are to say."""
    if found["findings"]:
        return [Words(f"{text[0].upper()}{text[1:]}.", WARN) for text in found["findings"]]
    if not _measured(found["points"]):
        return [Words("Nothing has been measured yet.", QUIET)]
    if not any(more for _, (_, *more) in _by_kind(found)):
        return []
    text = "No number of ranks is slower than fewer beyond the spread of the repetitions, and synchronising is the"
    return [Words(f"{text} largest part of an iteration nowhere.", QUIET)]


def scaling_sections(found: Record) -> list[Section]:
    """The charts of each kind of scaling, and the table."""
    charts = [Section(_title(kind, points[0]), _charts(points)) for kind, points in _by_kind(found)]
    caption = caption_of(found)
    measured = [Words(f"Measured on {caption}.")] if caption else []
    below = [_table(found["points"]), Words(_EXPLAINED), *measured]
    return [*charts, Section("By the number of ranks", below)]


def _measured(points: Sequence[Record]) -> list[Record]:
    return [point for point in points if point["fps"] is not None]


def _by_kind(found: Record) -> Iterator[tuple[str, list[Record]]]:
    """What was measured of each kind of scaling, the fewest ranks first."""
    measured = _measured(found["points"])
    for kind in dict.fromkeys(point["scaling"] for point in measured):
        yield kind, [point for point in measured if point["scaling"] == kind]


def _ranks(point: Record) -> str:
    return f"{point['world_size']} rank{'s' if point['world_size'] != 1 else ''}"


def _title(kind: str, first: Record) -> str:
    each = first["num_envs_per_rank"]
    return f"Weak scaling: {each:,} environments a rank" if kind == WEAK else (
        f"Strong scaling: {each * first['world_size']:,} environments in all"
    )  # fmt: skip


def _charts(points: Sequence[Record]) -> list[Block]:
    first = points[0]
    reached = [[point["fps"][name] for name in ("median", "min", "max")] for point in points]
    ideal = [first["fps"]["median"] * point["world_size"] / first["world_size"] for point in points]
    shares = [[100 * value / most for value in values] for values, most in zip(reached, ideal)]
    bars = {str(point["world_size"]): point["parts_s"] for point in points if point["parts_s"]}
    size = size_for(3 if bars else 2)
    in_proportion = "N × one rank" if first["world_size"] == 1 else f"in proportion to {_ranks(first)}"
    return [
        _curve("Throughput", "frames/s", points, reached, ideal, in_proportion, size),
        _curve("Efficiency", "%", points, shares, [100.0] * len(points), "nothing lost", size),
        *([parts_chart("An iteration of rank 0", "ranks", bars, size)] if bars else []),
    ]


def _curve(
    title: str, unit: str, points: Sequence[Record], reached: Sequence[Sequence[float]], ideal: Sequence[float],
    ideal_name: str, size: str,
) -> Chart:  # fmt: skip
    """The median of each number of ranks, with the range of its repetitions, and the line on which it would be."""
    ranks = [point["world_size"] for point in points]
    data = {
        "points": [[one, *(rounded(value) for value in values)] for one, values in zip(ranks, reached)],
        "repetitions": [len(point["repetitions"]) for point in points],
        "ideal": {"name": ideal_name, "points": [[one, rounded(value)] for one, value in zip(ranks, ideal)]},
        "log": ranks[-1] >= _LOGARITHMIC * ranks[0],
        "y": unit,
    }
    return Chart("scaling", title, data, size)


def _table(points: Sequence[Record]) -> Grid:
    parts = [name for name in ITERATION if any(name in point["parts_s"] for point in points)]
    failed = any(point["failed"] for point in points)
    headings = ["scaling", "ranks", "nodes", "environments a rank", "frames/s", "from", "to", "efficiency %",
                "iteration s", *(f"{name} %" for name in parts), *(["failed"] if failed else [])]  # fmt: skip
    rows = [[*_cells(point, parts), *([_failed(point)] if failed else [])] for point in points]
    return Grid("scaling", headings, rows, numbered=frozenset(range(1, 9 + len(parts))))


def _cells(point: Record, parts: Sequence[str]) -> list[Cell]:
    fps, whole = point["fps"] or {}, point["iteration_s"]
    rates = [round(fps[name]) if fps else None for name in ("median", "min", "max")]
    place = [point["scaling"], point["world_size"], point["num_nodes"], point["num_envs_per_rank"]]
    shares = [point["parts_s"][name] / whole if whole and name in point["parts_s"] else None for name in parts]
    return [*place, *rates, _percent(point["efficiency"]), rounded(whole, 3), *map(_percent, shares)]


def _percent(share: float | None) -> int | None:
    return None if share is None else round(100 * share)


def _failed(point: Record) -> str:
    return "; ".join(f"{one['run_id']}: {one['cause']} {one['message']}".strip() for one in point["failed"])
