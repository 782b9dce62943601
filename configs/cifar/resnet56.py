"""ResNet-56 for CIFAR, 0.85 M parameters."""

from models.cifar import resnet56
from utils.config import Config, configs, derived

configs.model = Config(resnet56, num_classes=derived(lambda: configs.dataset.num_classes))
