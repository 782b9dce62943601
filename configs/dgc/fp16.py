"""Values in float16; the memory keeps the quantization error."""

from utils.config import configs

configs.train.compression.fp16_values = True
