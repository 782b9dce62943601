"""ResNet-50 of ImageNet on CIFAR, 23.5 M parameters."""

from models.cifar import resnet50
from utils.config import Config, configs, derived

configs.model = Config(resnet50, num_classes=derived(lambda: configs.dataset.num_classes))
