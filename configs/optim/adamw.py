"""AdamW, rate 1e-3, decoupled weight decay 0.1."""

import torch

from utils.adaptive import betas
from utils.config import Config, configs, derived

configs.train.optimizer = Config(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
configs.train.optimizer.betas = derived(lambda: betas(configs.train, 0.9, 0.95))
