"""Values travel as 8-bit numbers; what is rounded off stays in the memory."""

from utils.config import configs

configs.train.compression.values = 'int8'
