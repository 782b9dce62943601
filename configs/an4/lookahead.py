"""Five LSTM layers of 800 units in one direction, 27.6 M parameters; then a view of 20 frames."""

from utils.config import configs

configs.model.bidirectional = False
