"""Hugging Face Accelerate: the hook is registered with the model that ``prepare`` returns.

    torchrun --nproc-per-node 2 examples/with_accelerate.py

The loop needs no change.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dgc
from dgc.hooks import CompressionState, compression_hook


def digits() -> TensorDataset:
    """Return float32 ``[1797, 64]`` from 0 to 1, and int64 ``[1797]`` from 0 to 9."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))


def main() -> nn.Module:
    """Train, and return the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--epochs', type=int, default=10)
    arguments = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    # DGCSGD, since the memory of the composition holds the momentum.
    optimizer = dgc.DGCSGD(network.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(digits(), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(network, optimizer, loader)

    composition = dgc.deep_gradient_compression(0.01, warmup_steps=40)
    model.register_comm_hook(CompressionState(composition), compression_hook)

    for epoch in range(arguments.epochs):
        losses = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        mean = accelerator.reduce(torch.stack(losses).mean(), 'mean')
        accelerator.print(f'epoch {epoch}: loss {mean:.3f}')
    accelerator.end_training()
    return network


if __name__ == '__main__':
    main()
