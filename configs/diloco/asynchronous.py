"""Asynchronous DiLoCo: one process serves, and takes an outer step on the movement of a quorum.

After files of a model. The learning rate is that of one worker. docs/parameter_server.md says how
the server and its workers are started.
"""

from dgc.algorithms.async_diloco import async_diloco
from utils.config import Config, configs
from utils.training.parameter_server import ParameterServer
from utils.training.pushing import AsynchronousOuterSteps

configs.train.distribution = Config(ParameterServer)
configs.train.averaging = Config(AsynchronousOuterSteps)
configs.train.compression = Config(async_diloco)
