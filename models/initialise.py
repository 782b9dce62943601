"""Initial weights that keep the variance of activations through ReLU layers."""

from torch import nn

__all__ = ['kaiming']


def kaiming(model: nn.Module) -> None:
    """Draw every convolution from N(0, 2 / fan_out) (He et al., ICCV 2015, eq. 14), in place.

    Linear and BatchNorm layers keep torch's defaults.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode='fan_out', nonlinearity='relu')
            if module.bias is not None:
                nn.init.zeros_(module.bias)
