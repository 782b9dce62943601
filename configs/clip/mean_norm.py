"""The mean of the ranks after the exchange, by its norm (published: 0.25 for PTB, 400 for AN4)."""

from torch.nn.utils import clip_grad_norm_

from utils.config import Config, configs

configs.train.clip_mean = Config(clip_grad_norm_, max_norm=0.25)
