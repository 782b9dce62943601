"""DiLoCo: 30 local steps, then an outer step with Nesterov momentum on their mean movement.

After files of a model. The learning rate is that of one worker.
"""

from dgc.algorithms.diloco import diloco
from utils.config import Config, configs
from utils.training.averaging import OuterSteps

configs.train.averaging = Config(OuterSteps)
configs.train.compression = Config(diloco)
