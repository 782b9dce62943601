"""ResNet-44 for CIFAR, 0.66 M parameters."""

from models.cifar import resnet44
from utils.config import Config, configs, derived

configs.model = Config(resnet44, num_classes=derived(lambda: configs.dataset.num_classes))
