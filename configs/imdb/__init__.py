"""IMDB: whether a review of a film is good or bad."""

from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR

from datasets import IMDB
from utils.config import Config, configs, derived
from utils.meters import CrossEntropy, TopK

configs.dataset = Config(IMDB, root='./data/aclImdb', vocabulary=10_000, length=200)

configs.train.num_epochs = 5
configs.train.batch_size = 16
configs.train.warmup_lr_epochs = 1
configs.train.optimizer = configs.train.optimizer.using(Adam)
configs.train.optimizer.lr = 0.0005

configs.train.schedule_lr_per_epoch = False
configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)

configs.train.meters = Config()
configs.train.meters['acc/{}_top1'] = Config(TopK, k=1)
configs.train.meters['loss/{}'] = Config(CrossEntropy)
configs.train.metric = 'acc/test_top1'
