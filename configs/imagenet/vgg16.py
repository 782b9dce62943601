"""VGG-16 without BatchNorm, 138 M parameters."""

from torchvision.models import vgg16

from utils.config import Config, configs, derived

configs.model = Config(vgg16, num_classes=derived(lambda: configs.dataset.num_classes))

# Without BatchNorm: a rate of 0.01 for 256 samples, and the weight decay of the papers.
configs.train.optimizer.lr = 0.00125
configs.train.optimizer.weight_decay = 5e-4
