"""ResNet-34, 21.8 M parameters."""

from torchvision.models import resnet34

from utils.config import Config, configs, derived

configs.model = Config(
    resnet34, num_classes=derived(lambda: configs.dataset.num_classes), zero_init_residual=True
)

configs.train.batch_size = 64
configs.train.optimizer.lr = 0.025
