"""Adam, rate 1e-3, without weight decay."""

import torch

from utils.adaptive import betas
from utils.config import Config, configs, derived

configs.train.optimizer = Config(torch.optim.Adam, lr=1e-3)
configs.train.optimizer.betas = derived(lambda: betas(configs.train, 0.9, 0.999))
