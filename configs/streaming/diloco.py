"""Two fragments, merged half and half five steps after they were sent."""

from utils.config import configs

configs.train.averaging.fragments = 2
configs.train.averaging.delay = 5
configs.train.averaging.merge = 0.5
