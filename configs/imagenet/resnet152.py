"""ResNet-152, 60.2 M parameters."""

from torchvision.models import resnet152

from utils.config import Config, configs, derived

configs.model = Config(
    resnet152, num_classes=derived(lambda: configs.dataset.num_classes), zero_init_residual=True
)

configs.train.optimize_bn_separately = True
configs.train.optimizer.weight_decay = 1e-4
configs.train.optimizer.nesterov = True
