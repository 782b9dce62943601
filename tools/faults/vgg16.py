"""VGG-16, whose state with momentum and residuals is some 200 MB, on digits of 32x32 pixels."""

import torch.nn.functional as F
from torch import Tensor, nn

from models.cifar import vgg16
from utils.config import Config, configs


class Enlarged(nn.Module):
    """VGG-16 on grey images of 8x8 pixels: each becomes 4x4 pixels of three colours."""

    def __init__(self) -> None:
        super().__init__()
        self.network = vgg16(num_classes=10)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(F.interpolate(x, scale_factor=4).expand(-1, 3, -1, -1))


configs.model = Config(Enlarged)
