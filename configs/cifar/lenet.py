"""LeNet-5 on images of three colours, 62 k parameters."""

from models.lenet import lenet
from utils.config import Config, configs, derived

configs.model = Config(
    lenet, in_channels=3, num_classes=derived(lambda: configs.dataset.num_classes)
)
