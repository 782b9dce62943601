# mypy: ignore-errors
"""Hugging Face Accelerate: ``prepare``, ``backward``, clipping and a scheduler."""

import torch
from accelerate import Accelerator
from common import DENSITY, STEPS, WARMUP, save
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dgc  # +
from dgc.hooks import CompressionState, compression_hook  # +
from dgc.memory import Residual  # +

BATCH = 16


def data() -> TensorDataset:
    """Return noise, ``[count, 64]``, on top of a pattern for each class."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 64, generator=generator)
    targets = torch.randint(10, (STEPS * BATCH * 4,), generator=generator)
    noise = torch.randn(len(targets), 64, generator=generator)
    return TensorDataset(0.3 * patterns[targets] + noise, targets)


def main() -> None:
    """Train."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    loader = DataLoader(data(), BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    parts = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP, memory=Residual())  # +
    model.register_comm_hook(CompressionState(parts), compression_hook)  # +

    losses: list[float] = []
    for inputs, targets in loader:
        if len(losses) == STEPS:
            break
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    save(accelerator.process_index, losses)
    accelerator.end_training()


if __name__ == '__main__':
    main()
