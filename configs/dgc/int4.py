"""Values in 4-bit integers; the memory keeps the quantization error."""

from utils.config import configs

configs.train.compression.values = 'int4'
