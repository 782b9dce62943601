"""The 32 largest coefficients of blocks of 64 by 64, as in the release: the default."""

from utils.config import configs

configs.train.compression.topk = 32
configs.train.compression.chunk = 64
