"""Values travel as 4-bit numbers; what is rounded off stays in the memory."""

from utils.config import configs

configs.train.compression.values = 'int4'
