"""A GPT of 12 layers, 124 M parameters: GPT-2 small, on the words of a large text."""

from models.transformer import GPT
from utils.config import Config, configs, derived
from utils.meters import CrossEntropy, Perplexity

configs.model = Config(
    GPT,
    vocabulary=derived(lambda: configs.dataset.vocabulary),
    layers=12,
    context=derived(lambda: configs.dataset.length),
)
configs.dataset.tokens = 'words'
configs.dataset.vocabulary = 50_257
configs.dataset.length = 1024
configs.train.batch_size = 4
configs.train.meters = Config()
configs.train.meters['loss/{}'] = Config(CrossEntropy)
configs.train.meters['perplexity/{}'] = Config(Perplexity)
