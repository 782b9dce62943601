"""MNIST with the rate and batch size of the OMGS-SGD experiments, and a cosine schedule."""

from torch.optim.lr_scheduler import CosineAnnealingLR

from datasets import MNIST
from utils.config import Config, configs, derived

configs.dataset = Config(MNIST, root='./data/mnist', num_classes=10)

configs.train.num_epochs = 30
configs.train.batch_size = 128
configs.train.warmup_lr_epochs = 2

configs.train.optimizer.lr = 0.01
configs.train.optimizer.weight_decay = 1e-4

configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)
