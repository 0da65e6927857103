"""Lets the node agent look into a rank that hangs, whatever script it runs: Python finds this file by itself.

The agent puts this directory on the ranks' PYTHONPATH and names a private directory of the node in LAUNCHER_WATCH_DIR.
There a rank leaves

- ``rank-R``: its process and, twice a second, the number of the last collective that it has entered in each group
  (some 50 µs each; the first rank's Python process of that number counts);
- ``stack-R``: the stacks of all threads, whenever it gets the signal SIGRTMAX-4; faulthandler writes them, even while C
  code holds the interpreter's lock;
- ``answer-R.json``: the last collectives, when the agent has touched ``ask``.

What torch keeps of its collectives is the flight recorder, whose names are private: where they are missing, so are the
collectives. Standard library only, and silent in every process that is no rank.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes as long to import as all the rest
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_TICK_S = 0.5


def _run_the_hidden_one() -> None:
    """Debian, conda and users have a sitecustomize of their own, and Python takes the first that it finds."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != here])
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


def _watch(directory: str, rank: str) -> None:
    import atexit
    import faulthandler
    import json
    import signal
    import threading

    beat = _claim(os.path.join(directory, f"rank-{rank}"))
    if beat is None:
        return
    stacks = os.open(os.path.join(directory, f"stack-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(signal.SIGRTMAX - 4, stacks, all_threads=True)
    main = threading.main_thread().ident
    over = threading.Event()

    def say(entered: dict[str, int] | None) -> None:
        said = {"pid": os.getpid(), "thread": main, "time": time.monotonic(), "entered": entered}
        os.pwrite(beat, json.dumps(said).encode() + b"\n", 0)

    def tick() -> None:
        asked: int | None = None
        while not over.wait(_TICK_S):
            say(_entered(json))
            if asked != (asked := _asked(directory)):
                _write(os.path.join(directory, f"answer-{rank}.json"), json.dumps(_answer(json, asked)))

    def begin() -> None:
        thread = threading.Thread(target=tick, name="launcher-watch", daemon=True)
        thread.start()
        # a thread that comes back from C++ while the interpreter ends would abort the process
        atexit.register(lambda: (over.set(), thread.join(2 * _TICK_S)))

    say(None)
    if "torch.distributed" in sys.modules:  # of a rank that was forked
        begin()
    else:
        sys.meta_path.insert(0, _WhenTorchComes(begin))


def _claim(path: str) -> int | None:
    """The file of this rank, for its first Python process; None where that still lives."""
    try:
        with open(path) as file:
            owner = int(file.read().partition('"pid": ')[2].partition(",")[0])
        if owner != os.getpid() and os.path.exists(f"/proc/{owner}"):
            return None
    except (OSError, ValueError):
        pass
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


class _WhenTorchComes:
    """Finds no module; sees that torch's collectives are being imported, which need a thread to be looked at."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch.distributed":
            sys.meta_path.remove(self)
            self._begin()


def _recorders() -> list[Callable[..., bytes]]:
    """The flight recorders, of gloo and of NCCL."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    names = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
    return [getattr(c10d, name) for name in names if hasattr(c10d, name)]


def _entered(json: ModuleType) -> dict[str, int]:
    """By group the number of the last collective entered."""
    entered: dict[str, int] = {}
    for dump in _recorders():
        try:
            for group, status in json.loads(dump(includeCollectives=False)).get("pg_status", {}).items():
                entered[group] = max(entered.get(group, 0), int(status["last_enqueued_collective"]))
        except Exception:
            continue
    return entered


def _answer(json: ModuleType, asked: int | None) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for dump in _recorders():
        try:
            entries += json.loads(dump(includeCollectives=True)).get("entries", [])
        except Exception:
            continue
    return {"asked": asked, "groups": _groups(), "collectives": list(map(_plain, _that_matter(entries)))}


def _that_matter(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each group the last collective, and before it the first that is not done: NCCL's are queued ahead."""
    last: dict[tuple[str, bool], dict[str, Any]] = {}
    pending: dict[tuple[str, bool], dict[str, Any]] = {}
    for entry in entries:
        key = (entry["process_group"][0], entry.get("is_p2p", False))
        last[key] = entry
        if not _done(entry):
            pending.setdefault(key, entry)
    return [one for key in last for one in ([pending[key]] if key in pending else []) + [last[key]]]


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    p2p = entry.get("is_p2p", False)
    return {
        "group": entry["process_group"][0],
        "number": entry["p2p_seq_id" if p2p else "collective_seq_id"],
        "name": entry["profiling_name"].rpartition(":")[2],
        "done": _done(entry),
        "shape": f"{entry.get('input_dtypes')} {entry.get('input_sizes')}"[:200],
        "p2p": p2p,
    }


def _done(entry: dict[str, Any]) -> bool:
    """With gloo the state stays `scheduled`."""
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _groups() -> dict[str, list[int]]:
    """Their members by global rank; the recorder's own word for gloo is wrong."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    try:
        return {world.pg_names[group]: sorted(ranks) for group, ranks in list(world.pg_group_ranks.items())}
    except Exception:
        return {}


def _asked(directory: str) -> int | None:
    try:
        return os.stat(os.path.join(directory, "ask")).st_mtime_ns
    except OSError:
        return None


def _write(path: str, text: str) -> None:
    try:
        with open(path + ".tmp", "w") as file:
            file.write(text)
        os.replace(path + ".tmp", path)
    except OSError:
        pass


def start() -> None:
    """Let the agent look into this process, if it is a rank; to be called by hand in one that was forked."""
    if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
        os.environ["LAUNCHER_RANK_BEGAN"] = str(time.time())  # for train/timings.py
        directory = os.environ.pop("LAUNCHER_WATCH_DIR", None)  # what a rank starts is no rank
        try:
            if directory is not None:
                _watch(directory, os.environ["RANK"])
        except Exception as error:
            print(f"launcher: a hang of this rank will tell less: {error!r}", file=sys.stderr)


if __name__ == "sitecustomize":
    start()
    _run_the_hidden_one()
