"""The site: PID 1 of the namespaces around a whole sandbox, on the login node, with the daemons and the nodes below.

It lives as long as the process that started it, however that ends: with the channel's other end gone, it kills
everything, removes the sandbox's directory and ends. Run as `python -m tests.sandbox.site DESCRIPTOR`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import config_files, namespaces, network, node
from .channel import Channel, Closed
from .init import Answer, Init, SiteError, tail
from .settings import LOGIN_NODE, LOGS, STATE, Settings

_PORTS = {"slurmctld": 6817, "slurmdbd": 6819}
_DATABASE = STATE / "db"
_DATABASE_TEMPORARY = STATE / "db.tmp"
"""Its temporary files are named by process ids, which in another sandbox are the same."""
_MARIADB = f"""\
env TMPDIR={_DATABASE_TEMPORARY} mariadbd --no-defaults --user=root --datadir={_DATABASE}
--socket={STATE}/mysql.sock --pid-file={STATE}/mysql.pid
--skip-networking --skip-grant-tables --skip-name-resolve --skip-log-bin --performance-schema=0
--innodb-buffer-pool-size=64M --innodb-log-file-size=16M --innodb-flush-log-at-trx-commit=0
--innodb-lock-wait-timeout=900""".split()
_MARIADB_INSTALL = f"""\
env TMPDIR={_DATABASE_TEMPORARY} mariadb-install-db --no-defaults --user=root --datadir={_DATABASE}
--auth-root-authentication-method=normal --skip-test-db""".split()
_MUNGE = Path("/run/munge")
"""Munge's own place on the site's private /run: Slurm's programs look for the socket there."""
_MUNGED = f"""\
munged --foreground --force --socket={_MUNGE}/munge.socket.2 --pid-file={_MUNGE}/pid
--key-file={STATE}/munge/key --seed-file={STATE}/munge/seed --log-file={STATE}/munge/log""".split()


@dataclass(frozen=True)
class BootedNode:
    name: str
    pid: int
    channel: Channel

    def ask(self, verb: str) -> None:
        self.channel.send({"verb": verb})
        self.wait()

    def wait(self) -> None:
        try:
            answer, _ = self.channel.receive(timeout=60)
        except Closed:
            raise SiteError(f"{self.name} ended by itself") from None
        if "error" in answer:
            raise SiteError(answer["error"])


class Site:
    def __init__(self, settings: Settings, channel: Channel) -> None:
        self._settings = settings
        self._init = Init(channel)
        self._nodes: dict[str, BootedNode] = {}

    def start(self) -> None:
        """Return when every node is idle."""
        self._prepare()
        if self._settings.accounting:
            self._start_accounting()
        slurmctld = self._start_daemon("slurmctld", "-D", "-i")
        self._boot(self._settings.nodes)
        self._init.wait_for(self._all_idle, "idle nodes", watch={slurmctld: self._log("slurmctld")})

    def serve(self) -> None:
        verbs = (self.fail, self.crash, self.recover, self.partition, self.heal, self.namespaces)
        self._init.serve({verb.__name__: verb for verb in verbs})

    def end(self) -> None:
        """Leave nothing behind."""
        self._init.kill_all()
        self._remove_memory_groups()
        if self._settings.keep_logs is not None:
            shutil.copytree(self._settings.logs, self._settings.keep_logs, dirs_exist_ok=True)
        shutil.rmtree(self._settings.root)

    def _remove_memory_groups(self) -> None:
        """Those of slurmd, which leaves them; another sandbox with nodes of the same names may still use them."""
        for name in self._settings.nodes:
            group = Path(namespaces.MEMORY_GROUPS, f"slurm_{name}")
            for directory in [*sorted(group.glob("**/"), reverse=True)]:
                with contextlib.suppress(OSError):
                    directory.rmdir()

    def fail(self, request: dict[str, Any]) -> None:
        """Power loss: the cable first, so that no farewell of a dying process gets through."""
        name = request["node"]
        booted = self._nodes.pop(name, None)
        if booted is None:
            return
        self._cable(name, "down")
        os.kill(booted.pid, signal.SIGKILL)
        self._init.wait_for(lambda: self._init.exit_status(booted.pid) is not None, f"power loss of {name}")
        booted.channel.close()
        self._init.run(["ip", "link", "delete", self._cable_name(name)])

    def crash(self, request: dict[str, Any]) -> None:
        self._booted(request["node"]).ask("kill_slurmd")

    def recover(self, request: dict[str, Any]) -> None:
        name = request["node"]
        if name in self._nodes:
            self._cable(name, "up")
            self._nodes[name].ask("start_slurmd")
        else:
            self._boot([name])

    def partition(self, request: dict[str, Any]) -> None:
        self._booted(request["node"])
        self._cable(request["node"], "down")

    def heal(self, request: dict[str, Any]) -> None:
        self._booted(request["node"])
        self._cable(request["node"], "up")

    def namespaces(self, request: dict[str, Any]) -> Answer:
        """The files to enter a node by."""
        pid = self._booted(request["node"]).pid
        return {}, [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in request["kinds"]]

    def _prepare(self) -> None:
        namespaces.own_machine(LOGIN_NODE)
        if self._settings.memory_limits:
            namespaces.mount_memory_groups()
        namespaces.mount_tmpfs("/run", "mode=755")
        for name in ("ctld", "spool", "munge", "dev", "log"):
            (STATE / name).mkdir(parents=True, mode=0o700)
        namespaces.mount_over(str(self._settings.logs), str(LOGS))
        _MUNGE.mkdir()
        self._write_config()
        self._init.run(["ip", "-batch", "-"], network.bridge_commands())
        for number in range(self._settings.gpus):  # any character device will do: /dev/null by another name
            os.mknod(STATE / "dev" / f"gpu{number}", 0o20666, os.makedev(1, 3))
        (STATE / "munge" / "key").write_bytes(os.urandom(128))
        (STATE / "munge" / "key").chmod(0o400)
        self._spawn("munged", _MUNGED)

    def _write_config(self) -> None:
        directory = self._settings.slurm_conf.parent
        for name, text in config_files.files(self._settings, time.time()).items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o600 if name == "slurmdbd.conf" else 0o644)  # slurmdbd insists on it
        nsswitch = directory / "nsswitch.conf"
        nsswitch.write_text(config_files.names_from_files_only(Path("/etc/nsswitch.conf").read_text()))
        for name in ("hosts", "nsswitch.conf"):
            namespaces.mount_over(str(directory / name), f"/etc/{name}")

    def _start_accounting(self) -> None:
        os.environ["MYSQL_UNIX_PORT"] = f"{STATE}/mysql.sock"
        _DATABASE_TEMPORARY.mkdir()
        pid = self._spawn("mariadb-install", _MARIADB_INSTALL)
        self._init.wait_for_end(pid, "mariadb-install-db", self._log("mariadb-install"))
        pid = self._spawn("mariadb", _MARIADB)
        self._init.wait_for((STATE / "mysql.sock").exists, "mariadb", watch={pid: self._log("mariadb")})
        slurmdbd = self._start_daemon("slurmdbd", "-D")
        # It listens before it can answer, and slurmctld gives up at once where it gets no kinds of resources from it.
        self._init.wait_for(_knows_resources, "slurmdbd's answer", watch={slurmdbd: self._log("slurmdbd")})

    def _start_daemon(self, name: str, *options: str) -> int:
        pid = self._spawn(name, [name, *options])
        self._init.wait_for(lambda: network.listening(_PORTS[name]), name, watch={pid: self._log(name)})
        return pid

    def _spawn(self, name: str, command: Sequence[str]) -> int:
        return self._init.spawn(command, self._log(name))

    def _log(self, name: str) -> Path:
        return self._settings.logs / f"{name}.out"

    def _boot(self, names: Sequence[str]) -> None:
        for name in names:
            self._nodes[name] = self._fork_node(name)
        new = {name: self._nodes[name] for name in names}
        for booted in new.values():
            booted.wait()
        cables = [network.cable_commands(self._number(name), booted.pid) for name, booted in new.items()]
        self._init.run(["ip", "-batch", "-"], "".join(cables))
        for booted in new.values():
            booted.channel.send({"verb": "boot"})
        for booted in new.values():
            booted.wait()

    def _fork_node(self, name: str) -> BootedNode:
        here, there = Channel.pair()
        with namespaces.children_in(None):
            pid = os.fork()
            if pid == 0:
                node.run(name, self._settings, there)
        there.forget()
        return BootedNode(name, pid, here)

    def _all_idle(self) -> bool:
        listed = subprocess.run(["sinfo", "-hN", "-p", "main", "-o", "%T"], capture_output=True, text=True, check=False)
        states = listed.stdout.split()
        if "inval" in states:
            raise SiteError(f"nodes do not have what slurm.conf says of them\n{tail(self._log('slurmctld'))}")
        return states == ["idle"] * len(self._settings.nodes)

    def _booted(self, name: str) -> BootedNode:
        if name not in self._nodes:
            raise SiteError(f"{name} is down")
        return self._nodes[name]

    def _cable(self, name: str, state: str) -> None:
        self._init.run(["ip", "link", "set", self._cable_name(name), state])

    def _cable_name(self, name: str) -> str:
        return f"cable{self._number(name)}"

    def _number(self, name: str) -> int:
        return self._settings.nodes.index(name)


def _knows_resources() -> bool:
    asked = subprocess.run(["sacctmgr", "-nP", "show", "tres"], capture_output=True, text=True, check=False)
    return asked.returncode == 0 and bool(asked.stdout)


def main(descriptor: str) -> None:
    if os.getpid() != 1:
        sys.exit("the site runs in a pid namespace of its own, started by tests.sandbox")
    channel = Channel.from_descriptor(int(descriptor))
    settings = Settings.from_json(channel.receive()[0]["settings"])
    namespaces.unshare(namespaces.NEW_MOUNT | namespaces.NEW_NET | namespaces.NEW_UTS)
    site = Site(settings, channel)
    try:
        site.start()
        channel.send({})
        site.serve()
    except Closed:
        pass
    except Exception as error:
        if not isinstance(error, SiteError):
            traceback.print_exc()
        channel.send({"error": str(error)})
    finally:
        site.end()


if __name__ == "__main__":
    main(sys.argv[1])
