"""Training with Hugging Face Accelerate that runs unchanged under DDP, DeepSpeed ZeRO-1 to 3 and FSDP2.

    python -m launcher task=script library=accelerate task.path=examples/accelerate_train.py cluster.nproc_per_node=2
    python -m launcher task=script library=accelerate task.path=examples/accelerate_train.py cluster=a100x8 \
        library.accelerate.mode=zero3 library.accelerate.mixed_precision=bf16

How the model is spread, in what precision, and over how many micro batches gradients are accumulated is decided by
the launcher's configuration (or a file of `accelerate config`), never here. FSDP2 needs GPUs; the others run anywhere.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def make_loader(per_device: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """The whole data set: `accelerator.prepare` gives each rank its share."""
    inputs = torch.randn(1024, 16, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))
    return DataLoader(data, per_device, shuffle=True, drop_last=True)


def main(steps: int, per_device: int) -> None:
    """Train for a number of optimizer steps, and print the loss over all ranks after each."""
    accelerator = Accelerator()  # reads the environment that the launcher has set
    set_seed(1)  # the same initial weights and the same order of the data on all ranks
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, make_loader(per_device))
    accelerator.print(f"{accelerator.distributed_type} on {accelerator.num_processes} ranks, {accelerator.device}")

    done = 0
    losses: list[torch.Tensor] = []
    while done < steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                # DeepSpeed clips by itself, at 1.0 where nothing else is said; so all of the ways clip alike.
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            if accelerator.sync_gradients:
                done += 1
                mean = accelerator.reduce(torch.stack(losses).mean(), "mean")
                accelerator.print(f"step {done} loss {mean.item():.6f}")
                losses.clear()
            if done == steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    options = parser.parse_args()
    main(options.steps, options.per_device_train_batch_size)
