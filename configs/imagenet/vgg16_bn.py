"""VGG-16 with BatchNorm, 138 M parameters."""

from torchvision.models import vgg16_bn

from utils.config import Config, configs, derived

configs.model = Config(vgg16_bn, num_classes=derived(lambda: configs.dataset.num_classes))
