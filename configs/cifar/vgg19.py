"""VGG-19 for CIFAR, 20.0 M parameters."""

from models.cifar import vgg19
from utils.config import Config, configs, derived

configs.model = Config(vgg19, num_classes=derived(lambda: configs.dataset.num_classes))
