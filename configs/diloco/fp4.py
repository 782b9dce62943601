"""DiLoCo with movements of 4 bits, floating point (E2M1), and error feedback."""

from dgc.algorithms.diloco import quantized_diloco
from utils.config import Config, configs

configs.train.compression = Config(quantized_diloco)
configs.train.compression.values = 'fp4'
