"""The variance changes in 100 steps, less and less often; then 2, 4 and 8 local steps a round."""

from utils.config import configs

configs.train.averaging.freeze_step = 100
configs.train.averaging.variance_doubling = 4
configs.train.averaging.interval_doubling = 64
configs.train.averaging.every = 8
