"""Adam, rate 1e-3, without weight decay."""

import torch

from utils.config import Config, configs

configs.train.optimizer = Config(torch.optim.Adam, lr=1e-3)
