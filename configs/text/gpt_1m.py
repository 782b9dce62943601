"""A GPT of 3 layers, 1.4 M parameters."""

from models.transformer import GPT
from utils.config import Config, configs, derived

configs.model = Config(
    GPT,
    vocabulary=derived(lambda: configs.dataset.vocabulary),
    layers=3,
    context=derived(lambda: configs.dataset.length),
)
