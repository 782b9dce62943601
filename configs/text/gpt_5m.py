"""A GPT of 5 layers, 6.3 M parameters."""

from models.transformer import GPT
from utils.config import Config, configs, derived

configs.model = Config(
    GPT,
    vocabulary=derived(lambda: configs.dataset.vocabulary),
    layers=5,
    context=derived(lambda: configs.dataset.length),
)
