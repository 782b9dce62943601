"""The digits of scikit-learn: real data without a download, under a minute on two cores."""

from torch.optim.lr_scheduler import CosineAnnealingLR

from datasets import Digits
from utils.config import Config, configs, derived

configs.dataset = Config(Digits)

# Small batches give many steps: at a density of 0.001 a tensor of 16,384 elements sends 16 per
# step.
configs.train.num_epochs = 25
configs.train.batch_size = 16
configs.train.warmup_lr_epochs = 2

configs.train.optimizer.lr = 0.025
configs.train.optimizer.weight_decay = 1e-4

configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)
