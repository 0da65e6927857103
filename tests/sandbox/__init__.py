"""A private, real Slurm cluster on one machine, for tests and for trying things out. Nothing here is a mock.

How it is built, from the outside in:

- `Sandbox` (sandbox.py) is the user's side. It starts the site, and asks things of it over a socket pair (channel.py).
- The site (site.py) is PID 1 of namespaces of its own: the login node `ctl`, with munged, MariaDB, slurmdbd and
  slurmctld, a private /run for their state, and a bridge. When its end of the socket pair reports the end of the
  starter, it kills everything below it and removes the sandbox's directory: a sandbox cannot outlive its starter.
- A node (node.py) is a fork of the site in further namespaces: its own processes, host name, /dev/shm and network, with
  an address on the bridge (network.py) and a slurmd. A power loss kills its PID 1, and the kernel kills the rest.
- Commands enter a machine through its namespaces (machine.py) as children of the caller.

The root file system is shared by all machines, as a cluster's shared file system is.
"""

from .errors import SandboxError, SandboxUnavailable
from .sandbox import Sandbox

__all__ = ["Sandbox", "SandboxError", "SandboxUnavailable"]
