"""The bytes of a text, tiny Shakespeare unless a path is set, by transformers or an LSTM."""

from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from datasets import TextFile
from dgc.clipping import ClipByModelNorm
from models.losses import TokenLoss
from utils.config import Config, configs, derived
from utils.meters import BitsPerByte, CrossEntropy

configs.dataset = Config(TextFile, path='./data/tinyshakespeare/input.txt')

configs.train.num_epochs = 10
configs.train.batch_size = 16
configs.train.criterion = Config(TokenLoss)
configs.train.warmup_lr_epochs = 1
configs.train.optimizer = configs.train.optimizer.using(AdamW)
configs.train.optimizer.lr = 0.00025
configs.train.optimizer.betas = (0.9, 0.99)
configs.train.optimizer.weight_decay = 0.1
configs.train.compression.gradient_clipping = Config(ClipByModelNorm, limit=1.0)

configs.train.schedule_lr_per_epoch = False
configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)

configs.train.meters = Config()
configs.train.meters['loss/{}'] = Config(CrossEntropy)
configs.train.meters['bits_per_byte/{}'] = Config(BitsPerByte)
configs.train.metric = 'loss/test'
