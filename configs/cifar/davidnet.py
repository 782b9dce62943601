"""DavidNet, a residual network with 9 layers for CIFAR, 6.6 M parameters."""

from models.cifar import davidnet
from utils.config import Config, configs, derived

configs.model = Config(davidnet, num_classes=derived(lambda: configs.dataset.num_classes))
