"""Ranks that are forked from torchrun's process, which has imported torch already, instead of started anew.

Importing torch takes seconds, and every rank of a node would do it again. The forks are made before torchrun has any
thread, store or socket, and wait; when torchrun starts a rank it sends its order to one of them, which leaves all of
torchrun behind and becomes the rank: its own session, environment, log and main module. It ends as any Python program
does. To everybody who looks at it in /proc it is what `python …` would be.

What every rank does first, before any code of the user's, is in `Order.settle`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from launcher.train import script
from launcher.train.site import sitecustomize

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""Signals that torchrun's process takes and does nothing about; its ranks have the default."""
_LOOK_EVERY_S = 0.05
_CUDA_ERROR_NOT_INITIALIZED = 3  # cuda.h
_TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Order:
    """What a forked process is to become."""

    command: Sequence[str]
    """As in ``python -u FILE ARGUMENTS…``."""
    environment: Mapping[str, str]
    log: str
    """The file that takes both streams, in order."""
    parent: int
    """The process that torchrun runs in."""

    def run(self) -> None:
        """Be the rank, from the outermost frame of the process: exceptions and exits end it as they end Python."""
        self.settle()
        try:
            script.run(self.command[2:])
        except Exception as error:  # as the interpreter does, but for our own frames
            sys.excepthook(type(error), error.with_traceback(_below(error)), error.__traceback__)
            sys.exit(1)

    def settle(self) -> None:
        """What every fork does first. Here belongs what a spawned one gets from the start of its interpreter."""
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        _redirect(self.log)
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)  # all anew: what follows overwrites the old ones
        show(self.command, self.environment)
        if os.getppid() != self.parent:  # it died before this process could be found as a rank of it
            os._exit(1)
        sys.orig_argv = list(self.command)
        _seed()
        sitecustomize.start()
        if "torch.distributed" in sys.modules:
            _end_gently()
        if self.command[2] != "-m" or not self.command[3].startswith("launcher."):
            _forget_ourselves()


@dataclass
class Waiting:
    """A forked process that waits for its order; what torchrun takes for its `Popen` from then on."""

    pid: int
    orders: int
    """The end of a pipe; closed without an order it ends the process."""
    returncode: int | None = None

    def send(self, order: Order) -> None:
        text = json.dumps([order.command, dict(order.environment), order.log])
        with contextlib.suppress(BrokenPipeError), open(self.orders, "wb") as pipe:  # its end will be noticed
            pipe.write(text.encode())

    def dismiss(self) -> None:
        os.close(self.orders)
        self.wait()

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: it has not ended within so many seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout or 0)
            time.sleep(_LOOK_EVERY_S)
        return code


def fork(count: int) -> list[Waiting] | Order:
    """Fork so many processes; returns them to the caller, and to each of them its order, when it comes."""
    gc.freeze()  # what is there stays shared: no collection of a rank will touch it
    parent, waiting = os.getpid(), list[Waiting]()
    for _ in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            for end in (writer, *(other.orders for other in waiting)):
                os.close(end)
            os.setsid()
            return _await_order(reader, parent)
        os.close(reader)
        waiting.append(Waiting(pid, writer))
    return waiting


def why_not(directory: str) -> str:
    """Why this process must not be forked into ranks whose script lies in a directory; empty where it may be."""
    if _cuda_is_initialised():
        return "CUDA is initialised already, which no fork survives"
    try:
        clash = _shadowed(directory)
        _areas()
    except (OSError, ValueError) as error:
        return str(error)
    return f"{clash} has the name of a module that is loaded already" if clash else ""


def _cuda_is_initialised() -> bool:
    """Asked of the driver, where it is loaded, by a call that fails for as long as it is not."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _CUDA_ERROR_NOT_INITIALIZED


def threads() -> int:
    """Threads of this process. Right after a fork those of OpenBLAS are gone, which ends and renews them by itself."""
    return len(os.listdir("/proc/self/task"))


def aside(task: Callable[[], None]) -> None:
    """Have a fork do something that leaves its mark on the environment, and take that over; nothing else of it stays.

    Raises:
        RuntimeError: it failed; with the text of the exception.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _do_and_tell(task, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        raise RuntimeError(text.decode(errors="replace") or f"it ended with {code}")
    made = json.loads(text)
    for name in set(os.environ) - set(made):
        del os.environ[name]
    os.environ.update(made)


def _do_and_tell(task: Callable[[], None], writer: int) -> NoReturn:
    code = 1
    with open(writer, "wb") as pipe:
        try:
            task()
            pipe.write(json.dumps(dict(os.environ)).encode())
            code = 0
        except BaseException as error:
            kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
            pipe.write(f"{kind}{error}".encode(errors="replace"))
    sys.stdout.flush()
    os._exit(code)


def _await_order(reader: int, parent: int) -> Order:
    with open(reader, "rb") as pipe:
        text = pipe.read()
    try:
        command, environment, log = json.loads(text)
    except ValueError:  # torchrun ended, perhaps in the middle of it
        os._exit(0)
    return Order(command, environment, log, parent)


def _shadowed(directory: str) -> str:
    """A file or package of the script's directory that a rank of its own would import in place of what is loaded."""
    loaded = {name for name in sys.modules if "." not in name and name not in ("launcher", "__main__")}
    for entry in sorted(os.listdir(directory)):
        name, dot, ending = entry.partition(".")
        is_module = ending == "py" or (not dot and (Path(directory) / entry / "__init__.py").exists())
        if is_module and name in loaded and not _lies_in(sys.modules[name], directory):
            return str(Path(directory) / entry)
    return ""


def _lies_in(module: ModuleType, directory: str) -> bool:
    origin = getattr(module, "__file__", None) or ""
    return os.path.realpath(origin).startswith(os.path.realpath(directory) + os.sep)


def _redirect(log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def show(command: Iterable[str], environment: Mapping[str, str]) -> None:
    """Have /proc/PID/cmdline and environ say what this process has become.

    The kernel reads both from where they were put when the program was started. What does not fit is left out: the
    node agent, and whoever looks for the ranks, needs the variables of torchrun and of the launcher.
    """
    needed = {name for name in environment if name in _TORCHRUN or name.startswith("LAUNCHER_")}
    order = sorted(environment, key=lambda name: (name not in needed, len(environment[name])))
    words, variables = _areas()
    _overwrite(words, map(os.fsencode, command))
    _overwrite(variables, (os.fsencode(f"{name}={environment[name]}") for name in order))


def _areas() -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the words and the environment that this process was started with lie in its memory: start and size.

    Raises:
        OSError, ValueError: the kernel does not say.
    """
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    words, end, variables, last = map(int, numbers[45:49])  # fields 48 to 51 of proc(5)
    known = Path("/proc/self/environ").read_bytes()
    if not known or ctypes.string_at(variables, last - variables) != known:
        raise ValueError("its environment is not where it should be")
    return (words, end - words), (variables, last - variables)


def _overwrite(area: tuple[int, int], texts: Iterable[bytes]) -> None:
    start, size = area
    block = b""
    for text in texts:
        if len(block) + len(text) < size:
            block += text + b"\0"
    ctypes.memmove(start, block.ljust(size, b"\0"), size)


def _seed() -> None:
    """NumPy's global generator, seeded at its import, would be the same in all ranks; Python's sees to that itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _end_gently() -> None:
    from launcher.train.ending import end_gently  # needs torch, which this module does not

    end_gently()


def _forget_ourselves() -> None:
    """A script may have a module of its own that is called `launcher`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "launcher"]:
        del sys.modules[name]


def _below(error: BaseException) -> TracebackType | None:
    """The traceback as it would be without this package's frames at its top."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, script.__file__):
        trace = trace.tb_next
    return trace
