"""Warm-up of 10 epochs; a tenth at epochs 81, 122 and 155 (gTop-k, OMGS, SparDL on CIFAR-10)."""

from torch.optim.lr_scheduler import MultiStepLR

from utils.config import Config, configs, derived

configs.train.warmup_lr_epochs = 10
configs.train.schedule_lr_per_epoch = True
# The scheduler counts from the end of the warm-up.
configs.train.scheduler = Config(MultiStepLR, gamma=0.1)
configs.train.scheduler.milestones = derived(
    lambda: [epoch - configs.train.warmup_lr_epochs for epoch in (81, 122, 155)]
)
