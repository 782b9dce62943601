"""Values in bfloat16; the memory keeps the quantization error."""

from utils.config import configs

configs.train.compression.values = 'bf16'
