"""CIFAR-10 with the schedule of the published DGC experiments."""

from torch.optim.lr_scheduler import CosineAnnealingLR

from datasets import CIFAR
from utils.config import Config, configs, derived

configs.dataset = Config(CIFAR, root='./data/cifar10', num_classes=10, image_size=32)

configs.train.num_epochs = 200
configs.train.batch_size = 128

configs.train.optimizer.lr = 0.1
configs.train.optimizer.weight_decay = 1e-4

configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)
