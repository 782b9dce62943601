"""AdamW, rate 1e-3, decoupled weight decay 0.1."""

import torch

from utils.config import Config, configs

configs.train.optimizer = Config(torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
