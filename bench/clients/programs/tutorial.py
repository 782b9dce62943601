# mypy: ignore-errors
"""In the style of PyTorch's DDP tutorial: processes of ``mp.spawn``, a toy model, SGD."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import DENSITY, STEPS, WARMUP, save
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dgc  # +
from dgc.hooks import CompressionState, compression_hook  # +


class ToyModel(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(50, 64)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        """From ``[batch, 50]`` to ``[batch, 5]``."""
        return self.net2(self.relu(self.net1(x)))


def demo_basic(rank: int, world_size: int) -> None:
    """Train as one of ``world_size`` ranks."""
    dist.init_process_group('gloo', rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(ToyModel())
    teacher = torch.randn(50, 5) / 7
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    composition = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP)  # +
    model.register_comm_hook(CompressionState(composition), compression_hook)  # +

    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(20, 50)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), inputs @ teacher)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(rank, losses)
    dist.destroy_process_group()


if __name__ == '__main__':
    size = int(os.environ.get('RANKS', '2'))
    os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ.setdefault('MASTER_PORT', '29500')
    mp.spawn(demo_basic, args=(size,), nprocs=size, join=True)
