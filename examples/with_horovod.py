"""Horovod: ``dgc.DistributedOptimizer`` takes the place of ``hvd.DistributedOptimizer``.

    horovodrun -np 2 python examples/with_horovod.py

The rest of the program stays as it is: Horovod's other functions work beside it.
"""

from __future__ import annotations

import argparse

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import dgc


def digits() -> TensorDataset:
    """Return float32 ``[1797, 64]`` from 0 to 1, and int64 ``[1797]`` from 0 to 9."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))


def main() -> nn.Module:
    """Train, and return the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--epochs', type=int, default=10)
    arguments = parser.parse_args()

    hvd.init()
    data = digits()
    sampler = DistributedSampler(data, hvd.size(), hvd.rank())
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = dgc.DistributedOptimizer(
        dgc.DGCSGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9),
        model.named_parameters(),
        dgc.deep_gradient_compression(0.01, warmup_epochs=3, fp16_values=True, int32_indices=True),
        dgc.create('horovod'),
        steps_per_epoch=len(loader),
    )  # rank 0's parameters are broadcast here

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = hvd.allreduce(torch.stack(losses).mean(), name='loss')
        if hvd.rank() == 0:
            print(f'epoch {epoch}: loss {mean:.3f}')
    return model


if __name__ == '__main__':
    main()
