"""ResNet-32 for CIFAR, 0.46 M parameters."""

from models.cifar import resnet32
from utils.config import Config, configs, derived

configs.model = Config(resnet32, num_classes=derived(lambda: configs.dataset.num_classes))
