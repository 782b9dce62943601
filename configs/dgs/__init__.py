"""Asynchronous training with a parameter server, sparsified in both directions: DGS at 1 %.

Use after files of configs/dgc/, whose warm-up and encodings are kept. One process serves, the
others train.
"""

import torch

from dgc.memory import SAMomentum
from dgc.parameter_server import dual_way
from utils.config import Config, configs
from utils.training.parameter_server import ParameterServer

configs.train.distribution = Config(ParameterServer)
configs.train.compression = configs.train.compression.using(dual_way)
configs.train.compression.compress_ratio = 0.01
configs.train.compression.memory = Config(SAMomentum)
configs.train.optimizer = configs.train.optimizer.using(torch.optim.SGD)
