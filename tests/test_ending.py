"""The end of a rank's process: a training that went well must not end in a crash."""

import subprocess
import sys

import pytest

from tests.conftest import environment

BUSY_AT_THE_END = """\
import torch
import torch.distributed as dist
from launcher.train.ending import end_gently

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
end_gently()
for _ in range(200):
    given, gathered = torch.ones(1_000_000), [torch.empty(1_000_000)]
    dist.all_gather(gathered, given, async_op=True)
    del given, gathered  # now gloo's threads are the last to hold them
"""


@pytest.mark.train
def test_a_process_ends_well_while_gloo_still_works() -> None:
    """Without `end_gently` two of three such processes die of SIGABRT."""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", BUSY_AT_THE_END], env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
