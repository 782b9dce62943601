"""Divided by 1.01 after every epoch, without a warm-up (the published trainers on AN4)."""

from torch.optim.lr_scheduler import ExponentialLR

from utils.config import Config, configs

configs.train.warmup_lr_epochs = 0
configs.train.schedule_lr_per_epoch = True
configs.train.scheduler = Config(ExponentialLR, gamma=1 / 1.01)
