"""DES-LOC: parameters averaged every 30 steps of AdamW, both of its moments every 90.

Where the first moment is averaged more often than the second, as in the paper, an element without a
gradient on one worker takes the first moment of the others there, divided by the root of a second
moment near zero. docs/local-steps.md has what came of it.
"""

import torch

from utils.config import Config, configs

configs.train.optimizer = Config(torch.optim.AdamW)
configs.train.optimizer.lr = 0.001
configs.train.averaging.lr = 1.0
configs.train.averaging.momentum = 0.0
configs.train.averaging.nesterov = False
configs.train.averaging.moments = {'exp_avg': 90, 'exp_avg_sq': 90}
