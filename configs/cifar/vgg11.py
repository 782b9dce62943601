"""VGG-11 for CIFAR, 9.2 M parameters."""

from models.cifar import vgg11
from utils.config import Config, configs, derived

configs.model = Config(vgg11, num_classes=derived(lambda: configs.dataset.num_classes))
