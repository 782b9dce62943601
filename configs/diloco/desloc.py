"""DES-LOC: parameters averaged every 30 steps of AdamW, its moments every 90 and 180."""

import torch

from utils.config import Config, configs

configs.train.optimizer = Config(torch.optim.AdamW)
configs.train.optimizer.lr = 0.001
configs.train.averaging.lr = 1.0
configs.train.averaging.momentum = 0.0
configs.train.averaging.nesterov = False
configs.train.averaging.moments = {'exp_avg': 90, 'exp_avg_sq': 180}
