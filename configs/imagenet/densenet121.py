"""DenseNet-121, 8.0 M parameters."""

from torchvision.models import densenet121

from utils.config import Config, configs, derived

configs.model = Config(densenet121, num_classes=derived(lambda: configs.dataset.num_classes))

configs.train.optimizer.weight_decay = 1e-4
configs.train.optimizer.nesterov = True
