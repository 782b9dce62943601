"""Values travel as bfloat16; what is rounded off stays in the memory."""

from utils.config import configs

configs.train.compression.values = 'bf16'
