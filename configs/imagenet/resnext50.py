"""ResNeXt-50 with 32 groups of 4 channels, 25.0 M parameters."""

from torchvision.models import resnext50_32x4d

from utils.config import Config, configs, derived

configs.model = Config(
    resnext50_32x4d,
    num_classes=derived(lambda: configs.dataset.num_classes),
    zero_init_residual=True,
)

configs.train.optimize_bn_separately = True
configs.train.optimizer.weight_decay = 1e-4
configs.train.optimizer.nesterov = True
