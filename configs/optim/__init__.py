"""Other optimizers than SGD, with a residual memory. Use after the files of a composition.

The learning rate is used as it is given, whatever the number of workers, and rises from near zero
in the warm-up.
"""

from dgc.memory import Residual
from utils.config import Config, configs

configs.train.scale_lr = False
if 'memory' in configs.train.compression:  # which uncompressed training has not
    configs.train.compression.memory = Config(Residual)
