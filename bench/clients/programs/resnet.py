# mypy: ignore-errors
"""In the style of PyTorch's ImageNet example: ResNet-18, momentum SGD, weight decay, StepLR."""

import torch
import torch.distributed as dist
from common import DENSITY, STEPS, WARMUP, save
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.models import resnet18

import dgc  # +
from dgc.hooks import CompressionState, compression_hook  # +
from dgc.memory import Residual  # +

CLASSES, SIDE, BATCH = 10, 16, 16


def images(count: int) -> TensorDataset:
    """Return noise, ``[count, 3, side, side]``, on top of a pattern for each class."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(CLASSES, 3, SIDE, SIDE, generator=generator)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, 3, SIDE, SIDE, generator=generator)
    return TensorDataset(0.5 * patterns[targets] + noise, targets)


def main() -> None:
    """Train."""
    dist.init_process_group('gloo')
    torch.manual_seed(0)
    model = DistributedDataParallel(resnet18(num_classes=CLASSES, zero_init_residual=True))
    criterion = nn.CrossEntropyLoss()
    settings = {'lr': 0.002, 'momentum': 0.9, 'weight_decay': 1e-4}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    parts = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP, memory=Residual())  # +
    model.register_comm_hook(CompressionState(parts, optimizer), compression_hook)  # +
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    data = images(25 * BATCH * dist.get_world_size())  # 25 steps per epoch
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler)
    losses: list[float] = []
    epoch = 0
    while len(losses) < STEPS:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        epoch += 1
    save(dist.get_rank(), losses[:STEPS])
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
