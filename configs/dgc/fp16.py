"""Values travel as float16; what is rounded off stays in the memory."""

from utils.config import configs

configs.train.compression.fp16_values = True
