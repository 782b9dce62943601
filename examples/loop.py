"""A plain training loop, with an evaluation after each epoch and a checkpoint.

    torchrun --nproc-per-node 2 examples/loop.py --checkpoint digits.pt

Started again, it continues after the last epoch of the checkpoint, with any number of ranks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import dgc

BATCH = 32  # per rank


def digits() -> tuple[Tensor, Tensor]:
    """Return float32 ``[1797, 64]`` from 0 to 1, and int64 ``[1797]`` from 0 to 9."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]


def train_epoch(
    model: nn.Module, optimizer: dgc.DistributedOptimizer, inputs: Tensor, targets: Tensor
) -> Tensor:
    """Return the mean loss of this rank, after one pass over its samples."""
    losses = []
    for batch in torch.randperm(len(inputs)).split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[batch]), targets[batch])
        loss.backward()  # compresses and sends buckets as their gradients are computed
        optimizer.step()  # waits for the other ranks' gradients
        losses.append(loss.detach())
    return torch.stack(losses).mean()


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Return the fraction of the samples that the model classifies correctly."""
    return float((model(inputs).argmax(1) == targets).float().mean())


def main() -> nn.Module:
    """Train, and return the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--checkpoint', type=Path, help='the file to write, and to continue from')
    arguments = parser.parse_args()

    engine = dgc.create()
    torch.manual_seed(engine.rank)
    inputs, targets = digits()
    test = inputs[1500:], targets[1500:]
    per_rank = 1500 // engine.size  # alike on all ranks, which must make equally many steps
    own = slice(engine.rank * per_rank, (engine.rank + 1) * per_rank)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = dgc.DistributedOptimizer(
        dgc.DGCSGD(model.parameters(), lr=0.05 * engine.size, momentum=0.9),
        model.named_parameters(),
        dgc.deep_gradient_compression(0.01, warmup_epochs=3),  # sends 1 % of the gradient
        engine,
        steps_per_epoch=-(-per_rank // BATCH),
    )

    first = 0
    if arguments.checkpoint and arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, weights_only=True)
        model.load_state_dict(saved['model'])
        optimizer.load_state_dict(saved['optimizer'])
        first = saved['epoch'] + 1

    for epoch in range(first, arguments.epochs):
        loss = train_epoch(model, optimizer, inputs[own], targets[own])
        loss = float(engine.all_reduce(loss.reshape(1))) / engine.size
        state = optimizer.gather_state_dict()  # all ranks call it: each has residuals of its own
        if engine.rank == 0:
            print(f'epoch {epoch}: loss {loss:.3f}, accuracy {accuracy(model, *test):.1%}')
            if arguments.checkpoint:
                saved = {'epoch': epoch, 'model': model.state_dict(), 'optimizer': state}
                torch.save(saved, arguments.checkpoint)
    engine.close()
    return model


if __name__ == '__main__':
    main()
