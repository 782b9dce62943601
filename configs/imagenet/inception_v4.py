"""Inception v4, 42.7 M parameters, on images of 299 pixels."""

from models.imagenet import inception_v4
from utils.config import Config, configs, derived

configs.dataset.image_size = 299

configs.model = Config(inception_v4, num_classes=derived(lambda: configs.dataset.num_classes))
