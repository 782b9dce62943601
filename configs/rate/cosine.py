"""A warm-up of one epoch, then a cosine to a tenth of the rate, at every step: for transformers."""

from torch.optim.lr_scheduler import CosineAnnealingLR

from utils.config import Config, configs, derived

configs.train.warmup_lr_epochs = 1
configs.train.schedule_lr_per_epoch = False
configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)
configs.train.scheduler.eta_min = derived(lambda: configs.train.optimizer.lr / 10)
