"""ResNet-34 of ImageNet on CIFAR, 21.3 M parameters."""

from models.cifar import resnet34
from utils.config import Config, configs, derived

configs.model = Config(resnet34, num_classes=derived(lambda: configs.dataset.num_classes))
