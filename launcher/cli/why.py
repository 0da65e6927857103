"""``why``: the story of a run: what happened when and where, what it means, and what to do."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.cli.nccl import how_to_apply
from launcher.cli.parser import RUN_HELP, parse, parser_of
from launcher.cli.statuses import statuses_of
from launcher.cli.watch import progress_line
from launcher.config.catalogue import matches
from launcher.config.compose import catalogue
from launcher.config.units import format_bytes
from launcher.records import rundir
from launcher.records.files import tail
from launcher.records.known import BY_ID, advice
from launcher.records.notes import Note, notes_in
from launcher.records.result import FAILED, Result, read_result
from launcher.records.rundir import Attempt, RunDir
from launcher.records.status import Status
from launcher.records.story import Chapter, Samples, Words, chapters, ended_at, samples_before, words_of

_TEXT = """\
The story of a run: how it ended, or what it does now; what happened when on which node, over all its attempts; the
traceback of the rank that failed first; memory, CPU and GPUs of its node in the minute before; what the error is known
to mean, with what to do, and the entries of the NCCL catalogue that fit; and where the logs are."""
_FULL_CHAPTERS = 3
"""The newest attempts; of older ones a line each."""
_MOST_ENTRIES = 3


@dataclass(frozen=True)
class Story:
    """All that ``why`` knows of a run."""

    run_id: str
    state: str
    line: str
    attempts: Sequence[Chapter]
    verdict: Result | None
    told: int | None
    """The attempt of `words`, `samples` and `nccl`: the newest that failed, or the last one; samples of a run that goes
    on are of this minute."""
    words: Words | None
    samples: Samples | None
    nccl: Sequence[Mapping[str, str]]
    """Entries of the catalogue, the nearest first: name, symptom, what to type."""
    logs: Sequence[str]
    notes: Sequence[Note]
    """What people have remarked."""


def why(argv: Sequence[str]) -> int:
    """``why RUN [--json]``."""
    parser = parser_of("why", _TEXT)
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--json", action="store_true", help="for programs: one object with all of it")
    options, runs_dir = parse(parser, argv)
    run = rundir.find(runs_dir, options.run)
    story = _story(run, statuses_of([run])[0])
    print(json.dumps(asdict(story), indent=2) if options.json else "\n".join(_lines(story)))
    return 0


def _story(run: RunDir, status: Status) -> Story:
    attempts = run.attempts()
    verdict = None if status.active else read_result(run.result)
    told = _told(attempts, verdict)
    end = verdict if verdict and verdict.outcome == FAILED else read_result(told.verdict) if told else None
    words = words_of(end) if end else None
    return Story(
        run_id=run.run_id,
        state=status.state,
        line=verdict.line() if verdict else _now(status),
        attempts=chapters(run),
        verdict=verdict,
        told=told.number + 1 if told else None,
        words=words,
        samples=_samples(attempts[-1] if status.active else told, None if status.active else end) if told else None,
        nccl=list(_nccl_entries(end)) if end else [],
        logs=list(_logs(run, words)),
        notes=notes_in(run.path),
    )


def _told(attempts: Sequence[Attempt], verdict: Result | None) -> Attempt | None:
    """The attempt whose end is told in full: the last one of a run that failed, else the newest that failed before."""
    if verdict is None or verdict.outcome != FAILED:
        for attempt in reversed(attempts):
            if (end := read_result(attempt.verdict)) is not None and end.outcome == FAILED:
                return attempt
    return attempts[-1] if attempts else None


def _samples(attempt: Attempt, end: Result | None) -> Samples | None:
    """The minute before an attempt ended, on the node where it failed; without an end the minute until now."""
    until = ended_at(attempt) if end else None
    return samples_before(attempt, end.host if end else None, until or time.time())


def _now(status: Status) -> str:
    """What a run that has no verdict does, or why it does nothing."""
    progress, parts = "", [status.state, status.detail, status.message]
    if "iteration" in status.metrics:
        ago = max(0.0, time.time() - (status.metrics.get("time") or 0.0))
        progress = f" · {progress_line(status.metrics, status.max_iterations, None)}, {_span(ago)} ago"
    return ": ".join(part for part in parts if part) + progress


def _nccl_entries(verdict: Result) -> Iterator[dict[str, str]]:
    """Those that are known to help with the reason, and those that fit what NCCL said."""
    reason = BY_ID.get(verdict.known)
    text = "\n".join([verdict.message, *_of_nccl(verdict)])
    if reason is None or not (reason.nccl or "NCCL" in text):
        return
    entries = catalogue().entries()
    known = [reason.nccl] if reason.nccl in entries else []
    for name in list(dict.fromkeys([*known, *(match.name for match in matches(text, entries))]))[:_MOST_ENTRIES]:
        yield {"name": name, "symptom": entries[name].symptom, "type": how_to_apply(name)}


def _of_nccl(verdict: Result) -> list[str]:
    """The lines that NCCL, or torch about it, wrote at the end of the failed rank's log."""
    if verdict.log is None:
        return []
    lines = tail(Path(verdict.log)).decode(errors="replace").splitlines()
    return [line for line in lines if "NCCL WARN" in line or "ProcessGroupNCCL" in line or "NET/IB" in line]


def _logs(run: RunDir, words: Words | None) -> Iterator[str]:
    if words is not None:
        yield words.log
    attempts = run.attempts()
    if attempts:
        yield str(attempts[-1].path)
    yield from (str(path) for path in (run.agent_log, run.slurm) if path.is_file() or any(path.glob("*.out")))


def _lines(story: Story) -> Iterator[str]:
    yield f"{story.run_id}\n{story.line}"
    for note in story.notes:
        yield from _indented(f"note of {note.line()}")
    if story.verdict and (what_to_do := advice(story.verdict.known, story.verdict.hint)):
        yield from _indented(f"what to do: {what_to_do}")
    for entry in story.nccl:
        yield from _indented(f"known setting: {entry['type']}: {entry['symptom']}")
    yield from _timeline(story)
    earlier = f"attempt {story.told}" if story.told != len(story.attempts) else ""
    if story.words is not None:
        yield f"\nwhat the rank said last{f' in {earlier}' if earlier else ''}"
        yield textwrap.indent(story.words.traceback or story.words.last_lines, "  ")
    if story.samples is not None:
        end = f"before the end{f' of {earlier}' if earlier else ''}" if story.verdict else "until now"
        yield f"\n{story.samples.host} in the minute {end}"
        yield from (f"  {line}" for line in sample_lines(story.samples))
    yield "\nlogs"
    yield from (f"  {path}" for path in story.logs)


def _indented(text: str) -> Iterator[str]:
    yield textwrap.fill(text, 118, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def _timeline(story: Story) -> Iterator[str]:
    advised = [advice(story.verdict.known, story.verdict.hint)] if story.verdict else []
    known_end = story.verdict.attempt_line() if story.verdict else None
    for chapter in story.attempts[:-_FULL_CHAPTERS]:
        yield f"\nattempt {chapter.number}{_begin(chapter)}\n  {_end(chapter)}"
        yield from _advised(chapter, advised)
    for chapter in story.attempts[-_FULL_CHAPTERS:]:
        yield f"\nattempt {chapter.number}{_begin(chapter)}"
        yield from (f"  {_span(moment.seconds):>8}  {moment.text}" for moment in chapter.moments)
        yield f"  {chapter.then or 'ended' if chapter.ended == known_end else _end(chapter)}"
        yield from _advised(chapter, advised)


def _advised(chapter: Chapter, before: list[str]) -> Iterator[str]:
    """What to do about an attempt that failed, in words that have not stood above; `before` takes them in."""
    what_to_do = advice(chapter.known, chapter.hint)
    if chapter.hint and what_to_do not in before:
        before.append(what_to_do)
        yield from _indented(f"what to do: {what_to_do}")


def _begin(chapter: Chapter) -> str:
    began = f"{datetime.fromtimestamp(chapter.began):%b %d %H:%M:%S}" if chapter.began else ""
    hosts = ", ".join(chapter.hosts) if len(chapter.hosts) <= 4 else f"{len(chapter.hosts)} nodes"
    parts = [began, hosts, f"job {chapter.job_id}" if chapter.job_id else ""]
    return "".join(f" · {part}" for part in parts if part)


def _end(chapter: Chapter) -> str:
    if not chapter.ended:
        return "no verdict: it goes on, or its first node was cut off"
    return f"{chapter.ended}{f' · {chapter.then}' if chapter.then else ''}"


def _span(seconds: float) -> str:
    """Seconds for people: ``3.2 s``, ``12:05``, ``1:02:03``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def sample_lines(samples: Samples) -> Iterator[str]:
    """Memory, CPU and disk in a line, and a line for each GPU that was seen."""
    first, last = samples.first, samples.last
    used = _change(first.get("memory_used_mb"), last.get("memory_used_mb"))
    parts = [f"memory {used} of {_memory(last.get('memory_limit_mb'))}"]
    if last.get("cpu") is not None:
        parts.append(f"CPU {last['cpu']:.0%}")
    if last.get("disk_free_mb") is not None:
        parts.append(f"{_memory(last['disk_free_mb'])} free on the run's disk")
    yield " · ".join(parts)
    for gpu in last.get("gpus") or []:
        yield f"GPU {gpu.get('index')}: {_gpu(gpu)}"
    if last.get("gpus_problem"):
        yield f"GPUs: {last['gpus_problem']}"


def _gpu(gpu: Mapping[str, Any]) -> str:
    if "error" in gpu:
        return str(gpu["error"])
    busy = "" if gpu.get("utilisation") is None else f"{gpu['utilisation']:.0%} busy"
    memory = f"memory {_memory(gpu.get('memory_used_mb'))} of {_memory(gpu.get('memory_total_mb'))}"
    heat = "" if gpu.get("temperature") is None else f"{gpu['temperature']} °C"
    return " · ".join(part for part in (busy, memory, heat, ", ".join(gpu.get("throttle") or [])) if part)


def _change(before: float | None, after: float | None) -> str:
    return _memory(after) if _memory(before) == _memory(after) else f"{_memory(before)} → {_memory(after)}"


def _memory(mebibytes: float | None) -> str:
    return "?" if mebibytes is None else format_bytes(mebibytes * 2**20)
