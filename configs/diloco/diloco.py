"""The outer SGD of the paper: rate 0.7, Nesterov momentum 0.9; the default."""

from utils.config import configs

configs.train.averaging.lr = 0.7
configs.train.averaging.momentum = 0.9
