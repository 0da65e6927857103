"""The page of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import launcher
from launcher.records.columns import is_number
from launcher.records.durations import duration
from launcher.records.files import Record, tail
from launcher.records.known import advice
from launcher.records.reading import Run, load_run
from launcher.records.result import COMPLETED, FAILED, STOPPED, Result
from launcher.records.status import LOST, PENDING, RUNNING, Status
from launcher.records.submission import submitted
from launcher.report.benchmark import benchmark_section
from launcher.report.curves import ended, metric_sections
from launcher.report.machines import machine_section
from launcher.report.origin import provenance_section
from launcher.report.page import (
    BAD,
    BUSY,
    GOOD,
    QUIET,
    WARN,
    Block,
    Page,
    Section,
    Text,
    Tiles,
    Words,
    few,
    number,
    unit_of,
)  # fmt: skip
from launcher.report.timeline import events_section, timeline_section
from launcher.submission.secrets import mask

LINES = 50_000
"""Of metrics.jsonl; a longer one is read at so many places."""
_LOG_BYTES, _LOG_LINES = 16384, 60

_NO_CONFIG = Words("There is no config.yaml.")

TONES = {COMPLETED: GOOD, FAILED: BAD, LOST: BAD, STOPPED: WARN, RUNNING: BUSY, PENDING: QUIET}
"""Of the states of a run."""


def run_page(status: Status, bundle: Record | None = None) -> Page:
    """All that is on record of a run, with its state as Slurm and the records tell it.

    Args:
        status: that state.
        bundle: of a benchmark that has ended.
    """
    run = load_run(Path(status.run_dir), most_lines=LINES)
    began, end = span(run)
    sections = [
        Section("", [*_verdict(run, status), _tiles(run, status, end - began)]),
        *([benchmark_section(bundle)] if bundle else []),
        *metric_sections(run, began, LINES),
        timeline_section(run, began),
        machine_section(run, began),
        *_last_words(run),
        events_section(run, began),
        provenance_section(run.provenance, run.plan),
        Section("Configuration", [Text("config.yaml", mask(run.config)) if run.config else _NO_CONFIG]),
    ]
    lead = " · ".join(filter(None, [run.plan.get("name"), few(status.nodes.split(",")), _job(run)]))
    return Page(
        title=run.run_id,
        state=status.state,
        tone=TONES.get(status.state, QUIET),
        lead=lead,
        sections=sections,
        made=made_now(str(run.records.path)),
        unit=unit_of(end - began),
        began=began,
        seconds=end - began,
    )


def _job(run: Run) -> str:
    job_id = submitted(run.records).get("job_id")
    return f"job {job_id}" if job_id else ""


def made_now(source: str) -> str:
    """When and by what a page was made, and from what."""
    return f"{datetime.now().astimezone():%Y-%m-%d %H:%M %z} by launcher {launcher.__version__} from {source}"


def span(run: Run) -> tuple[float, float]:
    """The first and the last moment that is on record, in seconds since the epoch."""
    submitted = _submission_time(run)
    began = [one.began for one in run.attempts if one.began is not None]
    ends = [ended(one) for one in run.attempts]
    measured = [at for at in run.metrics.get("time")[-1:] if is_number(at)]
    first = min([*submitted, *began], default=measured[0] if measured else time.time())
    return first, max([*ends, *measured, first])


def _submission_time(run: Run) -> Iterator[float]:
    """A resumed run has a newer one than its first attempt."""
    at = submitted(run.records).get("time")
    if is_number(at):
        yield at


def _verdict(run: Run, status: Status) -> Iterator[Block]:
    if run.result is not None:
        yield Words(run.result.line(), TONES.get(run.result.outcome, QUIET))
        yield from (Words(text) for text in (run.result.then, _hint(run.result)) if text not in ("", "ended"))
    elif status.state != RUNNING:
        yield Words(
            ": ".join(filter(None, [status.state, status.detail, status.message])), TONES.get(status.state, QUIET)
        )
    else:
        yield Words("It goes on: this page shows it as it was when it was made.", BUSY)
    for one in status.warnings:
        yield Words(f"{one.get('host', '')}: {one.get('message', '')} [{one.get('check', '')}]", WARN)
    if status.state in (RUNNING, PENDING) and run.result is not None:
        yield Words(f"Slurm says: {status.state} {status.detail}".strip(), BUSY)
    yield from (Words(f"Note of {note.line()}") for note in run.notes)


def _hint(result: Result) -> str:
    """The log's end is on the page: no need to say where it is."""
    what_to_do = advice(result.known, result.hint)
    only_where = result.log is not None and result.log in what_to_do
    return f"What to do: {what_to_do}" if what_to_do and not only_where else ""


def _tiles(run: Run, status: Status, seconds: float) -> Tiles:
    metrics = status.metrics
    resources = run.plan.get("resources") or {}
    ranks = (resources.get("nodes") or 0) * (resources.get("nproc_per_node") or 0)
    best = max((value for value in run.metrics.get("return_mean") if is_number(value)), default=None)
    found = [
        ("iteration", number(status.iteration), f"of {number(status.max_iterations)}" if status.max_iterations else ""),
        ("return", number(status.return_mean), "" if best is None else f"highest {number(best)}"),
        ("frames/s", number(status.fps), "in the last iteration"),
        ("environment steps", number(metrics.get("env_steps")), ""),
        ("attempts", number(status.attempts), ""),
        ("time", duration(seconds), "with all waits"),
        ("ranks", number(ranks), _shape(resources)),
    ]
    return Tiles([(label, value, below) for label, value, below in found if value not in ("", "0")])


def _shape(resources: Mapping[str, Any]) -> str:
    nodes, gpus = resources.get("nodes"), resources.get("gpus_per_node")
    words = f"{nodes} node" + ("s" if nodes != 1 else "")
    return f"{words}, {gpus} GPUs each" if gpus else f"{words}, on CPUs"


def _last_words(run: Run) -> Iterator[Section]:
    """The end of the log of the rank that failed first."""
    verdicts = [run.result, *(one.verdict for one in reversed(run.attempts))]
    failed = next((one for one in verdicts if one is not None and one.log), None)
    if failed is None or failed.log is None:
        return
    path = _here(run, Path(failed.log))
    lines = tail(path, _LOG_BYTES).decode(errors="replace").splitlines()[-_LOG_LINES:]
    if lines:
        last = f"last {len(lines)} lines" if len(lines) > 1 else "last line"
        title = f"The {last} of {path.parent.name}/{path.name}"
        told = [Words(_hint(failed))] if run.result != failed and _hint(failed) else []
        said = Text(title, mask("\n".join(lines)), open=run.result == failed)
        yield Section("What the failed rank said", [*told, said])


def _here(run: Run, log: Path) -> Path:
    """A log of the records, where they are now: they may have been moved or copied."""
    return run.records.path / "attempts" / log.parent.name / log.name
