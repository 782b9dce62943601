"""The ImageNet ResNets of He et al., CVPR 2016, on 32x32 images.

They are torchvision's, but for the first layers: one 3x3 convolution with stride 1 and no pooling.
"""

from collections.abc import Callable

from torch import nn

__all__ = ['resnet18', 'resnet34', 'resnet50']


def _for_small_images(name: str, num_classes: int) -> nn.Module:
    """A network of torchvision that divides the side of the images by 8, not by 32."""
    from torchvision import models  # takes a second to import

    make: Callable[..., nn.Module] = getattr(models, name)
    model = make(num_classes=num_classes)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode='fan_out', nonlinearity='relu')
    model.maxpool = nn.Identity()
    return model


def resnet18(num_classes: int = 10) -> nn.Module:
    """11.2 M parameters."""
    return _for_small_images('resnet18', num_classes)


def resnet34(num_classes: int = 10) -> nn.Module:
    """21.3 M parameters."""
    return _for_small_images('resnet34', num_classes)


def resnet50(num_classes: int = 10) -> nn.Module:
    """23.5 M parameters."""
    return _for_small_images('resnet50', num_classes)
