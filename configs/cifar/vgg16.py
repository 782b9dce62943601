"""VGG-16 for CIFAR, 14.7 M parameters."""

from models.cifar import vgg16
from utils.config import Config, configs, derived

configs.model = Config(vgg16, num_classes=derived(lambda: configs.dataset.num_classes))
