"""An encoder of 12 layers that predicts hidden bytes, 85 M parameters: the size of BERT base."""

from models.transformer import MaskedLanguageModel
from utils.config import Config, configs, derived

configs.dataset.reading = 'masked'
configs.model = Config(
    MaskedLanguageModel,
    vocabulary=derived(lambda: configs.dataset.vocabulary + 1),  # and the mask
    layers=12,
    context=derived(lambda: configs.dataset.length),
)
