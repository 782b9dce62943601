"""An encoder of 3 layers that predicts hidden bytes, 1.4 M parameters."""

from models.transformer import MaskedLanguageModel
from utils.config import Config, configs, derived

configs.dataset.reading = 'masked'
configs.model = Config(
    MaskedLanguageModel,
    vocabulary=derived(lambda: configs.dataset.vocabulary + 1),  # and the mask
    layers=3,
    context=derived(lambda: configs.dataset.length),
)
