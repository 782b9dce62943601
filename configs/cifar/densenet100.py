"""DenseNet with 100 layers and k = 12 for CIFAR, 7.0 M parameters."""

from models.cifar import densenet100
from utils.config import Config, configs, derived

configs.model = Config(densenet100, num_classes=derived(lambda: configs.dataset.num_classes))
