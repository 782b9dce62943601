"""ResNet-18 of ImageNet on CIFAR, 11.2 M parameters."""

from models.cifar import resnet18
from utils.config import Config, configs, derived

configs.model = Config(resnet18, num_classes=derived(lambda: configs.dataset.num_classes))
