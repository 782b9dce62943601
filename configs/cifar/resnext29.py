"""ResNeXt-29 with 8 groups of 64 channels for CIFAR, 34.4 M parameters."""

from models.cifar import resnext29
from utils.config import Config, configs, derived

configs.model = Config(resnext29, num_classes=derived(lambda: configs.dataset.num_classes))
