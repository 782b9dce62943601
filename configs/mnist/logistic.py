"""Logistic regression, 7,850 parameters."""

from models.mnist import logistic_regression
from utils.config import Config, configs, derived

configs.model = Config(
    logistic_regression, num_classes=derived(lambda: configs.dataset.num_classes)
)
