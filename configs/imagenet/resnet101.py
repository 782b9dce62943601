"""ResNet-101, 44.5 M parameters."""

from torchvision.models import resnet101

from utils.config import Config, configs, derived

configs.model = Config(
    resnet101, num_classes=derived(lambda: configs.dataset.num_classes), zero_init_residual=True
)

configs.train.optimize_bn_separately = True
configs.train.optimizer.weight_decay = 1e-4
configs.train.optimizer.nesterov = True
