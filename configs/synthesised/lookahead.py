"""8 channels, an LSTM layer of 192 units in one direction, a view ahead, 0.3 M parameters."""

from utils.config import configs

configs.model.channels = 8
configs.model.hidden = 192
configs.model.layers = 1
configs.model.bidirectional = False
configs.model.context = 10
