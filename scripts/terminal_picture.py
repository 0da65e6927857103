"""Draw docs/terminal.svg, the picture in the README: what the commands really print, on the private cluster.

``make slurm``, then in its shell ``python scripts/terminal_picture.py``. Only the home of the runs is shortened.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

_PICTURE = Path(__file__).resolve().parents[1] / "docs" / "terminal.svg"
_SCRIPT = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
features = torch.ones(4, 8 if dist.get_rank() != 3 else 6)
policy = torch.nn.Linear(8, 2)
for iteration in range(100):
    policy(features)
    dist.barrier()
"""
_COMMANDS = (
    "task=cartpole cluster=sandbox cluster.nodes=2 num_envs=32 wait=true",
    "task=script library=torchrun task.path=train.py cluster=sandbox cluster.nodes=2 wait=true",
    "status",
)
_WIDTH = 176
_SHOWN = re.compile(r"submitted|iteration=\d*[05] |completed|failed|  (not|tensors|the) |RUN|\d{8}-")


def main() -> int:
    """Run the commands, and draw."""
    console = Console(record=True, width=_WIDTH, file=open("/dev/null", "w"))  # noqa: SIM115
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "train.py").write_text(_SCRIPT)
        for words in _COMMANDS:
            console.print(Text.assemble(("$ ", "green"), (f"python -m launcher {words}", "bold")))
            for line in _printed(words, directory):
                style = "red" if line.startswith("failed") else "green" if line.startswith("completed") else ""
                console.print(Text(line, style), no_wrap=True, overflow="ellipsis")
            console.print()
    drawn = console.export_svg(title="RL Slurm launcher")
    _PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL))  # nothing from the network
    return 0


def _printed(words: str, directory: str) -> list[str]:
    """What the command prints, without the words of the RL library."""
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words.split()], cwd=directory, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = [line.replace(f"{directory}/", "") for line in done.stdout.splitlines()]
    return [line for line in lines if _SHOWN.match(line)]


if __name__ == "__main__":
    sys.exit(main())
