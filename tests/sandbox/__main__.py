"""python -m tests.sandbox shell|install: a private Slurm cluster on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .errors import SandboxError, SandboxUnavailable
from .install import install
from .sandbox import Sandbox
from .shell import run_shell


def main(arguments: Sequence[str]) -> int:
    own, command = _split(arguments)
    options = _parser().parse_args(own)
    try:
        if options.verb == "install":
            print("installed:", " ".join(install()) or "nothing was missing")
            return 0
        return _shell(options, command)
    except (SandboxUnavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _shell(options: argparse.Namespace, command: Sequence[str]) -> int:
    nodes = options.names.split(",") if options.names else options.nodes
    with Sandbox.start(nodes, gpus=options.gpus, accounting=not options.no_accounting) as sandbox:
        return run_shell(sandbox, command)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and the command after `--`."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    return given[:end], given[end + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sandbox", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("install", help="install the Debian packages that the sandbox needs (as root)")
    shell = verbs.add_parser("shell", help="start a cluster and run $SHELL, or CMD, on its login node")
    shell.usage = f"{shell.prog} [OPTIONS] [-- CMD...]"
    shell.add_argument("--nodes", type=int, default=4, metavar="N", help="number of nodes (default 4)")
    shell.add_argument("--names", metavar="A,B,...", help="names of the nodes, instead of node1 to nodeN")
    shell.add_argument("--gpus", type=int, default=2, metavar="G", help="GPUs per node (default 2)")
    shell.add_argument("--no-accounting", action="store_true", help="without slurmdbd: starts sooner, no sacct")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
