"""AlexNet for CIFAR, 2.5 M parameters."""

from models.cifar import alexnet
from utils.config import Config, configs, derived

configs.model = Config(alexnet, num_classes=derived(lambda: configs.dataset.num_classes))
