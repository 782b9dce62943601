"""Streaming DiLoCo: 30 local steps a round, one fragment of the model at a time.

After files of a model. The learning rate is that of one worker.
"""

from dgc.algorithms.streaming_diloco import streaming_diloco
from utils.config import Config, configs
from utils.training.averaging import StreamingOuterSteps

configs.train.averaging = Config(StreamingOuterSteps)
configs.train.compression = Config(streaming_diloco)
