"""DiLoCo with movements of 4 bits, whole numbers, and error feedback."""

from dgc.algorithms.diloco import quantized_diloco
from utils.config import Config, configs

configs.train.compression = Config(quantized_diloco)
configs.train.compression.values = 'int4'
