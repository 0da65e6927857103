"""One node: PID 1 of its own pid, mount, net and uts namespaces, with a slurmd below it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from . import namespaces
from .channel import Channel, Closed
from .init import Init
from .network import address_commands, listening
from .settings import Settings

_SLURMD_PORT = 6818


def run(name: str, settings: Settings, channel: Channel) -> NoReturn:
    """Be that node until it is killed. Called in a process just forked into a new pid namespace."""
    try:
        namespaces.unshare(namespaces.NEW_MOUNT | namespaces.NEW_NET | namespaces.NEW_UTS)
        channel.send({})  # now there is a network namespace to plug the cable into
        Node(name, settings, channel).serve()
    except Closed:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


class Node:
    def __init__(self, name: str, settings: Settings, channel: Channel) -> None:
        self._name = name
        self._settings = settings
        self._init = Init(channel)
        self._slurmd: int | None = None

    def serve(self) -> NoReturn:
        self._init.serve({"boot": self._boot, "start_slurmd": self._start_slurmd, "kill_slurmd": self._kill_slurmd})

    def _boot(self, _: dict[str, Any]) -> None:
        namespaces.own_machine(self._name)
        if self._settings.memory_limits:
            namespaces.mount_memory_groups()
        self._init.run(["ip", "-batch", "-"], address_commands("eth0", self._settings.address(self._name)))
        self._start_slurmd({})

    def _start_slurmd(self, _: dict[str, Any]) -> None:
        if self._slurmd is not None and self._init.exit_status(self._slurmd) is None:
            return
        self._slurmd = self._init.spawn(["slurmd", "-D", "-N", self._name], self._log)
        what = f"slurmd of {self._name}"
        self._init.wait_for(lambda: listening(_SLURMD_PORT), what, watch={self._slurmd: self._log})

    def _kill_slurmd(self, _: dict[str, Any]) -> None:
        slurmd = self._slurmd
        if slurmd is not None and self._init.exit_status(slurmd) is None:
            os.kill(slurmd, signal.SIGKILL)
            self._init.wait_for(lambda: self._init.exit_status(slurmd) is not None, "kill slurmd")

    @property
    def _log(self) -> Path:
        return self._settings.logs / f"slurmd.{self._name}.out"
