"""Tiny ImageNet in place of ImageNet: 200 classes, images of 64 pixels; before the network."""

from datasets import TinyImageNet
from utils.config import Config, configs

configs.dataset = Config(
    TinyImageNet, root='./data/tiny-imagenet-200', num_classes=200, image_size=64
)
