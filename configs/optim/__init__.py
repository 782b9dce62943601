"""Other optimizers than SGD, with the memory that suits them. Use after the files of a composition.

The learning rate is used as it is given, whatever the number of workers, and rises from near zero
in the warm-up.
"""

from dgc.memory import FirstMoment, Residual
from utils.adaptive import sparsifies
from utils.config import Config, configs

REPLACES = ('configs.train.compression.memory',)  # without a warning

configs.train.scale_lr = False
if 'memory' in configs.train.compression:  # which uncompressed training has not
    memory = FirstMoment if sparsifies(configs.train) else Residual
    configs.train.compression.memory = Config(memory)
