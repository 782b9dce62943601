"""Each rank takes the steps of its own Adam or AdamW, and these are compressed and averaged.

Use after a composition's files and adam.py or adamw.py. The learning rate is that of one worker.
"""

from dgc.memory import Residual
from utils.config import Config, configs
from utils.training.averaging import OuterSteps

configs.train.averaging = Config(OuterSteps, every=1, lr=1.0, momentum=0.0, nesterov=False)
configs.train.compression.memory = Config(Residual)
configs.train.compression.gradient_clipping = None
