"""ResNet-20 for CIFAR, 0.27 M parameters."""

from models.cifar import resnet20
from utils.config import Config, configs, derived

configs.model = Config(resnet20, num_classes=derived(lambda: configs.dataset.num_classes))
