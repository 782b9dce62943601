"""Pre-activation ResNet-110 for CIFAR, 1.7 M parameters."""

from models.cifar import preresnet110
from utils.config import Config, configs, derived

configs.model = Config(preresnet110, num_classes=derived(lambda: configs.dataset.num_classes))
