"""What the page of a run says of the benchmark that it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.records.bundle import STARTUP, parts_of
from launcher.records.files import Record
from launcher.records.measured import PARTS
from launcher.report.page import WARN, Block, Grid, Section, Tiles, Words, size_for
from launcher.report.parts import parts_chart
from launcher.report.thin import rounded

_MOST_BARS = 64
_NO_PHASES = {"rank", "host", "startup_s", *PARTS}
_WORDS = {
    "startup_s": "the whole start", "iteration_s": "an iteration", "collect_s": "stepping",
    "learn_s": "the update, with its collectives", "sync_s": "synchronising",
}  # fmt: skip


def benchmark_section(bundle: Record) -> Section:
    """The numbers of a bundle (docs/benchmarks.md): throughput, what takes the time, the ranks side by side."""
    extra = bundle["extra"]
    blocks: list[Block] = []
    if bundle["run"]["status"] != "completed":
        blocks.append(
            Words(f"It did not come to its end ({bundle['run']['status']}): the numbers are those until then.", WARN)
        )
    rows = list(_tiles(bundle))
    blocks += [Tiles(rows) if rows else Words("Nothing was measured.")]
    blocks += _bars(extra["per_rank"])
    if len(extra["per_rank"]) > _MOST_BARS:
        blocks.append(Words(f"The {_MOST_BARS} slowest of {len(extra['per_rank'])} ranks are drawn."))
    if extra["ranks"]:
        blocks.append(_ranks(extra["ranks"]))
    return Section(f"Benchmark: {extra['benchmark']}", blocks)


def _tiles(bundle: Record) -> Iterator[tuple[str, str, str]]:
    extra, runtime = bundle["extra"], bundle.get("runtime")
    if extra["benchmark"] == STARTUP and bundle["phases"]:
        seconds = sum(phase["total_time_s"] for phase in bundle["phases"].values())
        yield "start of rank 0", f"{seconds:.3g} s", "from the launch to the first step"
    if runtime:
        yield from _throughput(runtime, extra)
    alone = extra["ranks"].get("startup_s" if extra["benchmark"] == STARTUP else "collect_s")
    if alone and extra["world_size"] > 1:
        what = "start" if extra["benchmark"] == STARTUP else "stepping"
        times = f"{what} {alone['max']:.3g} s, median {alone['median']:.3g} s"
        yield "slowest rank", str(alone["slowest_rank"]), f"on {alone['slowest_host']}: {times}"


def _throughput(runtime: Record, extra: Record) -> Iterator[tuple[str, str, str]]:
    done, warmup = runtime["iterations_completed"], extra["warmup"]
    alone = extra["workload_scope"] == "rank0"
    one = "step" if alone else "iteration"
    if total := runtime["total_fps"]:
        whose = "of rank 0" if alone else "of all ranks"
        yield f"frames/s {whose}", f"{total['mean']:,.0f}", f"single {one}s ± {total['std']:,.0f}"
    if time := runtime["iteration_time_s"]:
        yield f"one {one}", f"{time['mean']:.3g} s", f"± {time['std']:.2g} s"
    yield f"{one}s measured", f"{done:,}", f"after {warmup:,} that do not count"


def _bars(ranks: Sequence[Record]) -> list[Block]:
    """What an iteration, and what the start of each rank consists of."""
    iterations = {str(one["rank"]): parts_of({"extra": {"per_rank": [one]}}) for one in ranks}
    starts = {str(one["rank"]): _phases(one) for one in ranks}
    charts = {"An iteration of each rank": iterations, "The start of each rank": starts}
    drawn = {title: bars for title, bars in charts.items() if any(bars.values())}
    return [parts_chart(title, "rank", _slowest(bars), size_for(len(drawn))) for title, bars in drawn.items()]


def _phases(rank: Record) -> dict[str, float]:
    return {name.replace("_", " "): seconds for name, seconds in rank.items() if name not in _NO_PHASES}


def _slowest(bars: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Of many ranks those for which the others wait: that take longest for what each does alone. In order."""
    long = set(sorted(bars, key=lambda name: -_alone(bars[name]))[:_MOST_BARS])
    return {name: parts for name, parts in bars.items() if name in long}


def _alone(parts: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in parts.items() if name != "synchronising")


def _ranks(ranks: Mapping[str, Any]) -> Grid:
    headings = ("seconds of", "min", "median", "max", "slowest rank", "host")
    rows = [
        (
            _WORDS.get(name, name.replace("_", " ")),
            *(rounded(one[part], 3) for part in ("min", "median", "max")),
            one["slowest_rank"],
            one["slowest_host"],
        )
        for name, one in sorted(ranks.items(), key=lambda item: item[0] not in PARTS)  # an iteration first
        if one
    ]
    return Grid("ranks", headings, rows, numbered=frozenset(range(1, 5)))
