"""Post-local SGD: the parameters are averaged at each of 100 steps, then every 30 steps."""

from utils.config import configs

configs.train.averaging.lr = 1.0
configs.train.averaging.momentum = 0.0
configs.train.averaging.nesterov = False
configs.train.averaging.after = 100
