"""ResNet-18, 11.7 M parameters."""

from torchvision.models import resnet18

from utils.config import Config, configs, derived

configs.model = Config(
    resnet18, num_classes=derived(lambda: configs.dataset.num_classes), zero_init_residual=True
)

configs.train.batch_size = 64
configs.train.optimizer.lr = 0.025
