"""MobileNet v2, 3.5 M parameters."""

from torchvision.models import mobilenet_v2

from utils.config import Config, configs, derived

configs.model = Config(mobilenet_v2, num_classes=derived(lambda: configs.dataset.num_classes))

configs.train.optimizer.weight_decay = 4e-5
