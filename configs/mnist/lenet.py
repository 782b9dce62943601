"""LeNet-5, 62 k parameters."""

from models.lenet import lenet
from utils.config import Config, configs, derived

configs.model = Config(lenet, num_classes=derived(lambda: configs.dataset.num_classes))
