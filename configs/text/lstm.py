"""Two LSTM layers of 256 units that carry their state, 1.2 M parameters."""

from models.language import LSTMLanguageModel
from utils.config import Config, configs, derived

configs.dataset.reading = 'streams'
configs.model = Config(
    LSTMLanguageModel,
    vocabulary=derived(lambda: configs.dataset.vocabulary),
    width=256,
    dropout=0.1,
    carries=True,
)
configs.train.optimizer.lr = 0.0005
