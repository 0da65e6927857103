"""Data-parallel training in plain PyTorch that survives a stop and a restart: copy it and put your model in.

    python -m launcher task=script library=torchrun task.path=examples/ddp.py cluster.nproc_per_node=2
    python -m launcher task=script library=torchrun task.path=examples/ddp.py cluster=a100x8 cluster.nodes=4
    python -m launcher task=script library=torchrun task.path=examples/ddp.py resume=latest

It also runs without the launcher, as `torchrun --nproc-per-node=2 examples/ddp.py` or just `python examples/ddp.py`.
"""

import argparse

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from launcher.train import Rank


def make_data() -> TensorDataset:
    """The same on every rank: the sampler gives each of them its share."""
    inputs = torch.randn(2048, 16, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))


def main(epochs: int, batch_size: int, save_every: int) -> None:
    """Train, save every few epochs and when asked to stop, and go on from the last save after a restart."""
    # Rank reads torchrun's variables, checks that the world is the planned one and joins the process group.
    with Rank(seed=1) as rank:
        torch.manual_seed(1)  # the same initial weights on all ranks
        model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(rank.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        # The checkpoint to go on from was chosen before the start, the newest one that is whole; None at the first.
        first_epoch = 0
        loaded = rank.checkpoints.load(rank.device)
        if loaded is not None:
            state, _ = loaded
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first_epoch = state["epoch"]
            rank.iteration = first_epoch

        wrapped = DistributedDataParallel(model) if rank.world_size > 1 else model
        data = make_data()
        sampler = DistributedSampler(data, rank.world_size, rank.rank, seed=1)
        loader = DataLoader(data, batch_size, sampler=sampler)

        for epoch in range(first_epoch, epochs):
            sampler.set_epoch(epoch)  # or every epoch would have the same order; after a resume it is the right one
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(wrapped(inputs.to(rank.device)), targets.to(rank.device))
                loss.backward()
                optimizer.step()

            # One line of metrics.jsonl; the progress that `python -m launcher status` shows.
            rank.progress(epoch + 1, loss=loss.item())
            # True on all ranks alike, soon after Ctrl-C, `scancel`, a preemption or the warning before the time limit.
            stop = rank.should_stop()
            if stop or (epoch + 1) % save_every == 0 or epoch + 1 == epochs:
                rank.check_sync(model.parameters())  # ends the run if the ranks' weights have come apart
                state = {"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                rank.checkpoints.save(epoch + 1, state)  # atomic: a kill in between leaves the one before
            if stop:
                rank.report("asked to stop")
                return
        rank.report("finished")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--save-every", type=int, default=5, help="epochs")
    options = parser.parse_args()
    main(options.epochs, options.batch_size, options.save_every)
