"""A private, real Slurm cluster on this machine, seen from outside: start it, run commands on its nodes, break it."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

from . import namespaces
from .channel import Channel, Closed
from .errors import SandboxError
from .init import tail
from .install import require
from .machine import NAMESPACES, Command, Machine, reap
from .settings import Settings, node_names

_REPOSITORY = Path(__file__).resolve().parents[2]
_DAEMON_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SLURM_PREFIXES = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_", "SACCT_", "PMI")
_START_SECONDS = 120
_ANSWER_SECONDS = 60
_STOP_SECONDS = 20
_UP = {"idle", "mixed", "allocated", "completing"}


class Sandbox:
    """A running cluster. Use it as a context manager, or call `stop`; it ends with this process in any case."""

    def __init__(self, settings: Settings) -> None:
        """Use `start`."""
        self._settings = settings
        self._channel, site_end = Channel.pair()
        self._site = _spawn_site(settings, site_end)
        site_end.forget()
        self._login_node: Machine | None = None
        self._started: set[subprocess.Popen[str]] = set()
        self._asking = threading.Lock()

    @classmethod
    def start(
        cls,
        nodes: Sequence[str] | int = 4,
        *,
        cpus: int = 64,
        memory_mb: int = 512_000,
        gpus: int = 2,
        gpu_type: str = "a100",
        accounting: bool = True,
        extra_conf: str = "",
        memory_limits: bool = False,
        slurmd_timeout: int = 10,
        grace: int = 5,
        keep_logs: Path | None = None,
    ) -> Sandbox:
        """Start a cluster and return when all its nodes are idle. `nodes`: their names, or how many; see Settings."""
        require()
        settings = Settings(
            root=Path(tempfile.gettempdir()).resolve() / f"slurm-{secrets.token_hex(4)}",
            nodes=node_names(nodes),
            cpus=cpus,
            memory_mb=memory_mb,
            gpus=gpus,
            gpu_type=gpu_type,
            accounting=accounting,
            extra_conf=extra_conf,
            memory_limits=memory_limits,
            slurmd_timeout=slurmd_timeout,
            grace=grace,
            keep_logs=keep_logs and keep_logs.absolute(),
        )
        sandbox = cls(settings)
        try:
            sandbox._finish_start()
        except BaseException:
            sandbox.stop()
            raise
        return sandbox

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._settings.nodes

    @property
    def root(self) -> Path:
        """Its directory: configuration in etc, logs in log."""
        return self._settings.root

    @property
    def env(self) -> dict[str, str]:
        """This process's environment as it is now, for commands of this cluster: nothing of another Slurm in it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_SLURM_PREFIXES)}
        kept.pop("HOSTNAME", None)
        return kept | {"SLURM_CONF": str(self._settings.slurm_conf)}

    def run(
        self,
        command: Command,
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node. `env` is its whole environment, by default this sandbox's `env`."""
        return self._login().run(command, cwd, self.env if env is None else env, timeout, check)

    def popen(
        self, command: Command, *, cwd: Path | str | None = None, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command on the login node. Options are Popen's; its pid is the command's own, for signals."""
        return self._login().popen(command, cwd, self.env if env is None else env, options)

    def on(
        self,
        node: str,
        command: Command,
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node outside of any job, as `ssh node command` does."""
        with closing(Machine(self._ask("namespaces", node, kinds=NAMESPACES), self._started)) as machine:
            return machine.run(command, cwd, self.env if env is None else env, timeout, check)

    def fail(self, node: str) -> None:
        """Power loss: the network is cut, then every process of the node is killed."""
        self._ask("fail", node)

    def crash(self, node: str) -> None:
        """Kill only the node's slurmd, with SIGKILL; job steps go on."""
        self._ask("crash", node)

    def partition(self, node: str) -> None:
        """Cut the node's network; everything on it goes on."""
        self._ask("partition", node)

    def heal(self, node: str) -> None:
        """Put the network back."""
        self._ask("heal", node)

    def recover(self, node: str, timeout: float = 30) -> None:
        """Bring the node back after any of these, and return when Slurm uses it again."""
        self._ask("recover", node)
        deadline = time.monotonic() + timeout
        while (state := self.state(node)) not in _UP:
            if time.monotonic() > deadline:
                raise SandboxError(f"{node} is still {state} after {timeout} s")
            time.sleep(0.1)

    def state(self, node: str) -> str:
        """The node's state as sinfo tells it: "idle", "down*", ..."""
        return self.run(["sinfo", "-hN", "-p", "main", "-n", node, "-o", "%T"], check=True).stdout.strip()

    def stop(self) -> None:
        """End the cluster; nothing of it is left when this returns. Stopping twice is fine."""
        self._channel.close()  # the site then cleans up by itself, as it does when this process is killed
        if not self._site_ends(_STOP_SECONDS):
            self._site.kill()
            if not self._site_ends(_STOP_SECONDS):
                raise SandboxError(f"the Slurm sandbox does not end: process {self._site.pid}")
        if self._login_node is not None:
            self._login_node.close()
            self._login_node = None
        shutil.rmtree(self.root, ignore_errors=True)

    def _site_ends(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._site.poll() is None and time.monotonic() < deadline:
            reap(self._started)
            time.sleep(0.01)
        return self._site.returncode is not None

    def _finish_start(self) -> None:
        self._channel.send({"settings": self._settings.to_json()})
        self._receive(_START_SECONDS)
        directory = Path(f"/proc/{self._site.pid}/ns")
        descriptors = [os.open(directory / kind, os.O_RDONLY) for kind in NAMESPACES]
        self._login_node = Machine(descriptors, self._started)

    def _ask(self, verb: str, node: str, **values: Any) -> list[int]:
        if node not in self.nodes:
            raise ValueError(f"no node {node!r} here, only {', '.join(self.nodes)}")
        self._login()
        with self._asking:
            self._channel.send({"verb": verb, "node": node, **values})
            return self._receive(_ANSWER_SECONDS)

    def _receive(self, timeout: float) -> list[int]:
        try:
            answer, descriptors = self._channel.receive(timeout)
        except (Closed, TimeoutError):
            raise SandboxError(f"the Slurm sandbox does not answer\n{tail(_site_log(self._settings))}") from None
        if "error" in answer:
            raise SandboxError(answer["error"])
        return descriptors

    def _login(self) -> Machine:
        if self._login_node is None:
            raise SandboxError("the Slurm sandbox is stopped")
        return self._login_node


def _spawn_site(settings: Settings, end: Channel) -> subprocess.Popen[bytes]:
    settings.root.mkdir(mode=0o700)
    settings.slurm_conf.parent.mkdir()
    settings.logs.mkdir()
    command = [sys.executable, "-ES", "-m", f"{__package__}.site", str(end.fileno())]
    environment = {"PATH": _DAEMON_PATH, "HOME": "/root", "SLURM_CONF": str(settings.slurm_conf)}
    with namespaces.children_in(None), _site_log(settings).open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=_REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[end.fileno()],
            start_new_session=True,
        )


def _site_log(settings: Settings) -> Path:
    return settings.logs / "site.out"
