"""What the sandbox needs from the system, and how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from . import namespaces
from .errors import SandboxUnavailable

_PACKAGE_OF_COMMAND = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "slurmdbd": "slurmdbd",
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
_PACKAGE_OF_FILE = {"*/slurm-wlm/accounting_storage_mysql.so": "slurm-wlm-mysql-plugin"}
_USED_BESIDES = {
    "shellcheck": "shellcheck", "ch-run": "charliecloud-runtime", "mmdebstrap": "mmdebstrap", "zsh": "zsh"
}  # fmt: skip
"""What tests of scripts, containers and completion use; without it only those are skipped."""
_BROWSER = {"chromium-headless-shell": "chromium-headless-shell"}
"""What opens reports in the tests. Ubuntu has no such package: there these tests are skipped, or use its browser."""
_INSTALL = "sudo python -m tests.sandbox install"
_ADMINISTRATOR_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


def require() -> None:
    """Raise SandboxUnavailable where a sandbox cannot start."""
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable("the Slurm sandbox needs Linux")
    if packages := missing_packages():
        raise SandboxUnavailable(f"the Slurm sandbox needs the packages {' '.join(packages)}: {_INSTALL}")
    if os.geteuid() != 0:
        raise SandboxUnavailable("the Slurm sandbox makes namespaces and mounts: run it as root (sudo)")
    try:
        with namespaces.children_in(None):
            pass
    except PermissionError:
        raise SandboxUnavailable("the Slurm sandbox makes namespaces: its container must be privileged") from None


def missing_packages() -> list[str]:
    """Debian packages that are not there, found by their commands and plugins."""
    missing = _without_command(_PACKAGE_OF_COMMAND)
    return missing + [package for file, package in _PACKAGE_OF_FILE.items() if not any(Path("/usr/lib").glob(file))]


def _without_command(packages: Mapping[str, str]) -> list[str]:
    path = f"{os.environ.get('PATH', os.defpath)}:{_ADMINISTRATOR_PATH}"
    return [package for command, package in packages.items() if not shutil.which(command, path=path)]


def install() -> list[str]:
    """Install what is missing, and return that."""
    packages = [*missing_packages(), *_without_command(_USED_BESIDES)]
    browser = _without_command(_BROWSER)
    can_install = shutil.which("apt-get") is not None and os.geteuid() == 0
    if not packages and not (browser and can_install):
        return []
    if not shutil.which("apt-get"):
        raise SandboxUnavailable(f"not a Debian system; the Slurm sandbox needs: {' '.join(packages)}")
    if os.geteuid() != 0:
        raise SandboxUnavailable(f"only root can install packages ({' '.join(packages)}): {_INSTALL}")
    if not _apt("update", "-qq") or not _apt(*_INSTALL_PACKAGES, *packages):
        raise SandboxUnavailable(f"apt-get failed; needed: {' '.join(packages)}")
    return packages + (browser if browser and _apt(*_INSTALL_PACKAGES, *browser) else [])


_INSTALL_PACKAGES = ("install", "-y", "--no-install-recommends")


def _apt(*arguments: str) -> bool:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(["apt-get", *arguments], env=environment, stdin=subprocess.DEVNULL).returncode == 0
