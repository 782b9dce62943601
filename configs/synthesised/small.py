"""8 channels, one LSTM layer of 128 units in both directions, 0.3 M parameters."""

from utils.config import configs

configs.model.channels = 8
configs.model.hidden = 128
configs.model.layers = 1
