"""What the events of an attempt say to a person, in the words of ``why`` and of ``report``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.records.result import how_it_ended, signal_of

Event = Mapping[str, Any]

_LONGEST = 160
_LONGEST_UNKNOWN = 300


def texts(event: Event, hosts: Sequence[str]) -> list[str]:
    """What an event says, mostly one sentence; nothing of failed ranks, which :func:`ends` tells.

    Args:
        event: a line of ``events.jsonl``; one of an unknown kind, or that makes no sense, is told as it is.
        hosts: of the allocation, by the number of the node.
    """
    tell = TELLERS.get(str(event.get("event")), _anything)
    try:
        return list(tell(event, hosts))
    except (LookupError, TypeError, ValueError, AttributeError):
        return [_as_it_is(event)]


def line(event: Event, hosts: Sequence[str]) -> str:
    """All that an event says, with the ends of ranks."""
    try:
        ended = [text for _, text in ends(event.get("failures") or [])]
    except (LookupError, TypeError, ValueError, AttributeError):
        return _as_it_is(event)
    return " · ".join([*texts(event, hosts), *ended])


def _attempt(event: Event, _: Sequence[str]) -> Iterator[str]:
    job = f" · job {event['job_id']}" if event.get("job_id") else ""
    yield f"begins on {_several(event['hosts'], 'nodes')}{job}"


def _start(event: Event, hosts: Sequence[str]) -> Iterator[str]:
    names = [hosts[int(node)] for node in event["nodes"] if node < len(hosts)]
    resume = f", from checkpoint {Path(event['resume']).name}" if event["resume"] else ""
    yield f"ranks start on {_several(names, 'nodes')}, master {event['master_addr']}:{event['master_port']}{resume}"


def _findings(event: Event, _: Sequence[str]) -> Iterator[str]:
    for one in event.get("findings", [event]):
        yield f"{one['severity']} on {one['host']}: {one['message']} [{one['check']}]"


def _ended(event: Event, hosts: Sequence[str]) -> Iterator[str]:
    host = hosts[event["node"]] if event["node"] < len(hosts) else f"node {event['node']}"
    if not event["code"]:
        yield f"the ranks on {host} ended well"
    elif event["code"] < 0 and not event["failures"]:
        yield f"torchrun on {host} was ended; none of its ranks had failed"
    elif not event["failures"]:
        yield f"torchrun on {host} failed: {event['message']}"


def _lost(event: Event, _: Sequence[str]) -> Iterator[str]:
    yield f"{event['host']} is gone{', without a word' if event.get('silent') else ''}"


def _still(event: Event, _: Sequence[str]) -> Iterator[str]:
    word = "hang" if event["event"] == "hang" else "it may hang"
    yield f"{word}: nothing moves since {event['seconds']:.0f} s: {event['message']}"
    if event.get("nccl"):
        yield f"NCCL says (nccl-ras.txt): {'; '.join(event['nccl'])}"


def _moves_again(_: Event, __: Sequence[str]) -> Iterator[str]:
    yield "it moves again"


def _stop(event: Event, _: Sequence[str]) -> Iterator[str]:
    why = event["why"].replace("_", " ")
    if event["grace_s"]:
        yield f"the ranks are told to stop ({why}), {event['grace_s']:g} s to save"
    else:
        yield f"the ranks are killed ({why})"


def _asked(event: Event, _: Sequence[str]) -> Iterator[str]:
    """What Slurm answered when it was asked why it had sent a signal."""
    if event["cause"] == "terminated":
        yield "Slurm knows of no reason to stop"
    else:
        down = f": {', '.join(event['down'])}" if event["down"] else ""
        yield f"Slurm's reason to stop: {event['cause'].replace('_', ' ')}{down}"


def _passed_over(event: Event, _: Sequence[str]) -> Iterator[str]:
    yield event["why"]


def _verdict(event: Event, _: Sequence[str]) -> Iterator[str]:
    then = f" · {event['then']}" if event.get("then") else ""
    yield f"{event['outcome']}: {event['cause'].replace('_', ' ')}{then}"


def _anything(event: Event, _: Sequence[str]) -> Iterator[str]:
    yield _as_it_is(event)


TELLERS: Mapping[str, Callable[[Event, Sequence[str]], Iterator[str]]] = {
    "attempt": _attempt,
    "start": _start,
    "preflight": _findings,
    "warning": _findings,
    "ended": _ended,
    "lost": _lost,
    "suspicion": _still,
    "hang": _still,
    "moves_again": _moves_again,
    "stop": _stop,
    "asked": _asked,
    "passed_over": _passed_over,
    "verdict": _verdict,
}


def _as_it_is(event: Event) -> str:
    facts = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("time", "event"))
    return f"{str(event.get('event')).replace('_', ' ')}: {facts}"[:_LONGEST_UNKNOWN]


def ends(failures: Sequence[Event]) -> Iterator[tuple[float, str]]:
    """The ends of ranks, each with its time: those of the same kind in one line, however many nodes there are."""
    kinds: dict[tuple[str, str], list[Event]] = {}
    for one in sorted(failures, key=lambda one: one["ended"]):
        kinds.setdefault((_end_of(one), one.get("known") or one["message"]), []).append(one)
    for (end, _), alike in kinds.items():
        who = _ranks([one["rank"] for one in alike])
        hosts = _several(list(dict.fromkeys(one["host"] for one in alike)), "nodes")
        said = alike[0]["message"]  # of a torchrun that was killed its end, once more
        message = f": {said}"[:_LONGEST] if said and not said.endswith(end) else ""
        ended = end.replace("was ", "were ") if len(alike) > 1 else end
        yield alike[0]["ended"], f"{who} on {hosts} {ended}{message}"


def _end_of(failure: Event) -> str:
    return how_it_ended(failure["exit_code"], signal_of(failure["exit_code"]))


def _ranks(ranks: Sequence[int | None]) -> str:
    numbers = sorted(rank for rank in ranks if rank is not None)
    if not numbers:
        return "torchrun"
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(_ranges(numbers))}" if len(_ranges(numbers)) <= 4 else f"{len(numbers)} ranks"


def _ranges(numbers: Sequence[int]) -> list[str]:
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in found]


def _several(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} {what}"
