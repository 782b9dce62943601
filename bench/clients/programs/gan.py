# mypy: ignore-errors
"""In the style of PyTorch's DCGAN: two networks with an optimizer each, and two passes of one."""

import torch
import torch.distributed as dist
from common import DENSITY, STEPS, WARMUP, save
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dgc  # +
from dgc.hooks import CompressionState, compression_hook  # +
from dgc.memory import Residual  # +

NOISE, SIDE, BATCH = 16, 8, 16


def generator() -> nn.Module:
    """From ``[batch, noise, 1, 1]`` to images ``[batch, 1, side, side]`` between -1 and 1."""
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 32, 4, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
        nn.ConvTranspose2d(32, 1, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip


def discriminator() -> nn.Module:
    """From images to the probability that they are real, ``[batch]``."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
        nn.Conv2d(32, 1, 4, bias=False), nn.Sigmoid(), nn.Flatten(0),
    )  # fmt: skip


def real_images() -> Tensor:
    """Return images ``[batch, 1, side, side]`` of one bright row."""
    rows = torch.randint(SIDE, (BATCH,))
    images = -torch.ones(BATCH, 1, SIDE, SIDE)
    images[torch.arange(BATCH), 0, rows] = 1
    return images


def main() -> None:
    """Train."""
    dist.init_process_group('gloo')
    torch.manual_seed(0)
    netG = DistributedDataParallel(generator())  # noqa: N806
    netD = DistributedDataParallel(discriminator())  # noqa: N806
    for net in (netG, netD):  # +
        parts = dgc.deep_gradient_compression(DENSITY, warmup_steps=WARMUP, memory=Residual())  # +
        net.register_comm_hook(CompressionState(parts), compression_hook)  # +
    criterion = nn.BCELoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=5e-4, betas=(0.5, 0.999))  # noqa: N806
    optimizerG = torch.optim.Adam(netG.parameters(), lr=5e-4, betas=(0.5, 0.999))  # noqa: N806
    real, fake = torch.ones(BATCH), torch.zeros(BATCH)

    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(STEPS):
        # Update D: maximize log(D(x)) + log(1 - D(G(z))).
        netD.zero_grad()
        errD_real = criterion(netD(real_images()), real)  # noqa: N806
        errD_real.backward()
        images = netG(torch.randn(BATCH, NOISE, 1, 1))
        errD_fake = criterion(netD(images.detach()), fake)  # noqa: N806
        errD_fake.backward()
        optimizerD.step()
        # Update G: maximize log(D(G(z))).
        netG.zero_grad()
        netD.require_backward_grad_sync = False  # +
        errG = criterion(netD(images), real)  # noqa: N806
        errG.backward()
        netD.require_backward_grad_sync = True  # +
        optimizerG.step()
        losses.append((errD_real + errD_fake + errG).item())
    save(dist.get_rank(), losses)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
