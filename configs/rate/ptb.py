"""Times 0.97 after every epoch, without a warm-up (SparDL and Ok-Topk on the Penn Treebank)."""

from torch.optim.lr_scheduler import ExponentialLR

from utils.config import Config, configs

configs.train.warmup_lr_epochs = 0
configs.train.schedule_lr_per_epoch = True
configs.train.scheduler = Config(ExponentialLR, gamma=0.97)
