"""A cosine schedule of the learning rate instead of steps."""

from torch.optim.lr_scheduler import CosineAnnealingLR

from utils.config import Config, configs, derived

configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)
