"""AlexNet, 61.1 M parameters."""

from torchvision.models import alexnet

from utils.config import Config, configs, derived

configs.model = Config(alexnet, num_classes=derived(lambda: configs.dataset.num_classes))

# Without BatchNorm: a rate of 0.01 for 256 samples, and the weight decay of the papers.
configs.train.optimizer.lr = 0.00125
configs.train.optimizer.weight_decay = 5e-4
