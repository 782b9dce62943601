"""64 elements of each chunk of 4,096 and a decay of 0.95, as in the paper: the default."""

from utils.config import configs

configs.train.compression.topk = 64
configs.train.compression.decay = 0.95
