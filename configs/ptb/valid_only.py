"""The validation text trains, where the training text is missing: not comparable with others."""

from utils.config import configs

configs.dataset.train_on = 'valid'
configs.train.metric = 'perplexity/test'
configs.dataset.vocabulary = 6_022  # the words of that text
