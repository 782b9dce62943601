"""An LSTM layer of 128 units over words, 0.74 M parameters, of which 0.64 M are the embedding."""

from models.classifier import LSTMClassifier
from utils.config import Config, configs, derived

configs.model = Config(LSTMClassifier, vocabulary=derived(lambda: configs.dataset.vocabulary))
